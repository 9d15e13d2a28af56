"""A verified package, opened: weights bound, inputs checked, runs served.

Uses torch's loader directly (milliseconds) on a folder that we have unpacked ourselves, so that torch
neither unpacks nor probes anything. Imports no compiler. Does not decide whether a package can be
trusted: `store` and `sources` have done so, and the hash is checked once more here.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from compile_cache import members, scratch
from compile_cache.checks import InputCheck, check_constants
from compile_cache.errors import InputMismatch, PackageRefused, RunFailed, StoreError, out_of_memory
from compile_cache.manifest import Manifest

_opened: weakref.WeakValueDictionary[tuple[str, str, tuple[tuple[str, str, int], ...]], Binary]
_opened = weakref.WeakValueDictionary()
_lock = threading.RLock()


def _unlocked() -> None:
    """In a fork, whose parent may have been opening a binary in another thread."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_unlocked)


def open_binary(
    path: Path,
    constants: Mapping[str, Mapping[str, Tensor]],
    manifest: Manifest,
    *,
    device: torch.device | str | None = None,
) -> Binary:
    """Opens the package at `path`, once per process for the same content, device and weights.

    constants: entry point -> weight name -> tensor. Bound by reference: the memory is shared with the
    caller's tensors, is kept alive by the binary and must not be changed.
    device: which GPU; by default the device type of the key's environment.
    Raises PackageRefused (content or members wrong, or the library does not load), ConstantMismatch,
    StoreError (no place to unpack).
    """
    where = torch.device(device or manifest.fields["environment"]["device"])
    if where.type != manifest.fields["environment"]["device"]:
        raise PackageRefused(f"the package is for {manifest.fields['environment']['device']}, not for {where.type}")
    specs = manifest.entry_points
    for name in constants:
        if name not in specs:
            raise InputMismatch(f"weights are given for {name}, which is not an entry point of this package")
    weights = {
        name: check_constants(spec, manifest.bound[name], constants.get(name, {}), where)
        for name, spec in specs.items()
    }
    pointers = tuple(
        sorted((entry, name, t.data_ptr()) for entry, bound in weights.items() for name, t in bound.items())
    )
    identity = (manifest.content, str(where), pointers)
    with _lock:
        binary = _opened.get(identity)
        if binary is None:
            binary = _opened[identity] = Binary(path, manifest, weights, where)
        return binary


class Binary:
    """An open package. Make it with `open_binary`. Runs of one entry point at a time, from any thread."""

    def __init__(
        self, path: Path, manifest: Manifest, weights: Mapping[str, dict[str, Tensor]], device: torch.device
    ) -> None:
        self.key = manifest.key
        self.device = device
        specs = manifest.entry_points
        self.entry_points = tuple(specs)
        self._checks = {name: InputCheck(spec, device) for name, spec in specs.items()}
        self._locks = {name: threading.Lock() for name in specs}
        self._loaders = {}
        self._weights: dict[str, dict[str, Tensor]] = {}  # the loader keeps pointers only
        # Read once by the library at its first run: it then checks its inputs too, behind our own checks.
        os.environ.setdefault("AOTI_RUNTIME_CHECK_INPUTS", "1")
        folder = scratch.make()
        try:
            _unpack(path, manifest, folder)
            index = -1 if device.index is None else device.index
            for name in specs:
                literals = {key: item.tensor(device) for key, item in manifest.literals[name].items()}
                self._weights[name] = {**weights[name], **literals}
                self._loaders[name] = _load(folder, name, index, self._weights[name])
        finally:
            # A mapped library needs its file no longer; GPU kernels are read when first used.
            if device.type == "cpu" or len(self._loaders) < len(specs):
                scratch.remove(folder)

    def weights(self) -> list[Tensor]:
        """All that is bound, by reference."""
        return [tensor for bound in self._weights.values() for tensor in bound.values()]

    def run(self, entry_point: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Runs an entry point. Inputs that its graph mutates are changed in place.

        Raises InputMismatch before anything ran, RunFailed when the binary raised: what it had mutated
        by then stays so, and the binary serves the next call.
        """
        check = self._checks.get(entry_point)
        if check is None:
            raise InputMismatch(f"there is no entry point {entry_point}; there are {', '.join(self.entry_points)}")
        check.check(tensors)
        # One at a time: with one runner per library, torch's own queue can leave a waiter behind
        # for good when the run before it raised.
        with self._locks[entry_point], torch.no_grad():
            try:
                return self._loaders[entry_point].boxed_run(list(tensors))
            except RuntimeError as error:
                text = str(error).strip().splitlines() or ["no reason given"]
                raise RunFailed(f"{entry_point} failed: {text[0][:500]}") from error


def _unpack(path: Path, manifest: Manifest, folder: Path) -> None:
    try:
        with path.open("rb") as file:
            size, sha256 = members.hash_file(file)
            if (size, sha256) != (manifest.package.size, manifest.package.sha256):
                raise PackageRefused("the package's size or sha256 is not the manifest's")
            members.extract(file, folder)
    except OSError as error:
        raise StoreError(f"cannot unpack the package into {folder}: {error.strerror}") from error
    unpacked = folder / next(folder.iterdir()).name / "data" / "aotinductor"
    if {item.name for item in unpacked.iterdir()} != set(manifest.entry_points):
        raise PackageRefused("the package does not hold the manifest's entry points")


def _load(folder: Path, name: str, index: int, weights: dict[str, Tensor]) -> torch._C._aoti.AOTIModelPackageLoader:
    try:
        loader = torch._C._aoti.AOTIModelPackageLoader(str(folder), name, False, 1, index)
        if set(loader.get_constant_fqns()) != set(weights):
            raise PackageRefused(f"{name}: the library wants other weights than the manifest says")
        loader.load_constants(weights, False, True, True)  # use_inactive, check_full_update, user_managed
    except RuntimeError as error:
        text = str(error).strip().splitlines() or ["no reason given"]
        if out_of_memory(str(error)):
            raise StoreError(f"{name}: there is no room for it on the device") from error
        raise PackageRefused(f"{name}: the library does not load: {text[0][:500]}") from error
    return loader
