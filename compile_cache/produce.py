"""From entry points to a stored entry: build, try out in a child process, store.

The one place where key, build, smoke run and store meet. Nothing enters the store that has not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compile_cache import members, scratch
from compile_cache.build import BuildFigures, EntryPoint, Progress, build_package
from compile_cache.errors import BuildFailed, PackageRefused, SmokeFailed
from compile_cache.key import key_of
from compile_cache.manifest import PACKAGE, SCHEMA, FileRecord, Manifest
from compile_cache.smoke import Call, SmokeResult, Weights, run_smoke
from compile_cache.specs import constants_of
from compile_cache.store import Entry, LocalStore


def produce(
    entry_points: Sequence[EntryPoint],
    store: LocalStore,
    fields: Mapping[str, Any],
    *,
    options: Mapping[str, Any] | None = None,
    calls: Sequence[Call] = (),
    weights: Weights | None = None,
    tolerance: tuple[float, float] | None = None,
    publisher: str = "",
    licence: str = "",
    progress: Progress = lambda text: None,
    timeout: float = 900.0,
) -> Entry:
    """Builds the binary for `fields` and stores it; returns the stored entry, or the one already there.

    fields: from `key.key_fields` with the same entry points' specs and the same options.
    calls: reference calls for the trial run; none leaves the trial run out (reference is None then).
    weights: for the trial run; by default those of the modules, copied through a file.
    tolerance: (relative, absolute): also run the modules eagerly on the calls and compare the outputs.
    Raises CompilerMissing, BuildFailed, SmokeFailed, StoreError.
    """
    key = key_of(fields)
    specs = sorted((entry.spec() for entry in entry_points), key=lambda spec: spec.name)
    if [spec.as_json() for spec in specs] != list(fields["entry_points"]):
        raise BuildFailed("the entry points are not those of the key's fields")
    with store.building(key):
        found = _already(store, key)
        if found is not None:
            progress("it is in the store")
            return found
        store.check_writable()  # before minutes of compiling, not after
        with scratch.folder() as work:
            package = work / PACKAGE
            figures = build_package(entry_points, package, options, progress)
            manifest = _manifest(key, fields, package, figures, None, publisher, licence)
            if calls:
                progress("trying it out in a process of its own")
                named = {entry.name: constants_of(entry.module) for entry in entry_points}
                result = run_smoke(package, manifest, calls, named if weights is None else weights, timeout=timeout)
                if tolerance is not None:
                    _compare(entry_points, calls, result, tolerance)
                manifest = _manifest(key, fields, package, figures, result.digest, publisher, licence)
            progress("storing")
            return store.put(manifest, package)


def _already(store: LocalStore, key: str) -> Entry | None:
    try:
        return store.find(key)
    except PackageRefused:
        return None  # in quarantine now


def _manifest(
    key: str,
    fields: Mapping[str, Any],
    package: Path,
    figures: BuildFigures,
    reference: str | None,
    publisher: str,
    licence: str,
) -> Manifest:
    with package.open("rb") as file:
        record = FileRecord(*members.hash_file(file))
    return Manifest(
        schema=SCHEMA,
        key=key,
        fields=fields,
        files={PACKAGE: record},
        bound=figures.bound,
        literals=figures.literals,
        figures=figures.entries,
        reference=reference,
        built_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        compiler=figures.compiler,
        publisher=publisher,
        licence=licence,
    )


def _compare(
    entry_points: Sequence[EntryPoint], calls: Sequence[Call], result: SmokeResult, tolerance: tuple[float, float]
) -> None:
    modules = {entry.name: entry.module for entry in entry_points}
    copies: dict[int, Tensor] = {}
    for index, (call, outputs) in enumerate(zip(calls, result.outputs, strict=True)):
        # The caller's tensors stay as they are; one shared by several calls stays shared.
        inputs = [copies.setdefault(id(tensor), tensor.clone()) for tensor in call.inputs]
        with torch.no_grad():
            eager = modules[call.entry_point](*inputs)
        expected = (eager,) if isinstance(eager, Tensor) else tuple(eager)
        for position, (one, other) in enumerate(zip(expected, outputs, strict=True)):
            one = one.cpu()
            if one.shape != other.shape or one.dtype != other.dtype:
                raise SmokeFailed(f"call {index}, output {position}: shape or dtype differ from eager's")
            if not torch.allclose(one.double(), other.double(), *tolerance, equal_nan=True):
                worst = (one.double() - other.double()).abs().max().item()
                raise SmokeFailed(f"call {index}, output {position} differs from eager's by up to {worst:.3g}")
