"""The key of a binary: a hash over everything that decides whether it is the right one for here.

In the key: what the binary computes (sources, configs, entry points, names, shapes and dtypes of inputs
and weights, compiler options, versions of custom kernels) and what it runs on (torch, CUDA, Triton,
device, processor, system). Not in the key: weight values, paths, home, user, time.

Nor the C++ compiler's version: it changes the bytes but not what the binary may be used for (GCC and
Clang follow one C++ ABI, which *is* in the key, and the library needs no newer C library than that of
the machine it was built on, which is there too). In the key it would make every image update recompile,
and a machine without a compiler could not name a key at all. It is recorded in the manifest instead.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from compile_cache.cpu import cpu_fields
from compile_cache.options import effective_options
from compile_cache.specs import EntrySpec

SCHEMA = 2  # of key, manifest and the meaning of the reference digest
FIELD_NAMES = ("schema", "environment", "sources", "config", "entry_points", "options", "kernels")
SOURCE_SUFFIXES = (".py", ".pyi", ".cu", ".cuh", ".cpp", ".h")


def environment(device: torch.device | str = "cpu", options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the binary runs on, JSON-able. `options`: effective compiler options (they decide the CPU part).

    For "cuda" the capability is asked from torch, which on ZeroGPU answers with the platform's declared
    value outside a GPU function.
    """
    device = torch.device(device)
    gpu = device.type == "cuda"
    return {
        "torch": torch.__version__,
        "torch_git": torch.version.git_version,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        # Only GPU code is generated through Triton; on a CPU its version does not matter.
        "triton": _version("triton") if device.type != "cpu" else None,
        "device": device.type,
        "gpu": torch.cuda.get_device_name(device) if gpu else None,
        "capability": ".".join(map(str, torch.cuda.get_device_capability(device))) if gpu else None,
        "cpu": cpu_fields(effective_options(device) if options is None else options),
        "os": sys.platform,
        "machine": platform.machine(),
        "libc": "-".join(platform.libc_ver()),
        "cxx11_abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI),
    }


def sources_digest(roots: Iterable[str | Path]) -> str:
    """Hash of the code that defines the graph: 64 hex digits.

    roots: files or folders; each enters under its own last name, so that the same code in another
    place gives the same hash. Folders are walked for SOURCE_SUFFIXES; caches and hidden folders are
    left out.
    Raises FileNotFoundError for a root that is not there.
    """
    files: dict[str, Path] = {}
    for root in map(Path, roots):
        if not root.exists():
            raise FileNotFoundError(root)
        inside = [root] if root.is_file() else sorted(root.rglob("*"))
        for path in inside:
            relative = path.relative_to(root)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in relative.parts)
            if path.is_file() and not hidden and (path == root or path.suffix in SOURCE_SUFFIXES):
                files[(Path(root.resolve().name) / relative).as_posix()] = path
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        content = path.read_bytes().replace(b"\r\n", b"\n")  # a checkout's line ends are not the code
        digest.update(f"{len(name)}:{name}:{len(content)}:".encode() + content)
    return digest.hexdigest()


def key_fields(
    entry_points: Iterable[EntrySpec],
    *,
    device: torch.device | str,
    sources: str,
    config: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    kernels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """All fields of the key, in clear.

    sources: `sources_digest(...)`; config: the JSON-able configs that shape the graph; options: overrides
    of the compiler options, the same that `build_package` gets; kernels: name -> version of custom kernels.
    """
    effective = effective_options(device, options)
    specs = sorted(entry_points, key=lambda spec: spec.name)
    fields = {
        "schema": SCHEMA,
        "environment": environment(device, effective),
        "sources": sources,
        "config": dict(config),
        "entry_points": [spec.as_json() for spec in specs],
        "options": effective,
        "kernels": dict(kernels or {}),
    }
    return json.loads(canonical(fields))


def key_of(fields: Mapping[str, Any]) -> str:
    """64 hex digits over the canonical JSON of `fields`. Raises ValueError where JSON cannot hold a value."""
    return hashlib.sha256(canonical(fields)).hexdigest()


def canonical(fields: Mapping[str, Any]) -> bytes:
    """One spelling for equal fields: sorted names, no spaces, ASCII, no NaN."""
    try:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except TypeError as error:
        raise ValueError(f"a field of the key cannot be written as JSON: {error}") from None
    return text.encode()


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
