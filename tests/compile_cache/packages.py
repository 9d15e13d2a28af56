"""Small packages and sound manifests for them, where nothing needs to be compiled."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compile_cache.key import key_fields, key_of
from compile_cache.manifest import PACKAGE, SCHEMA, EntryFigures, FileRecord, Manifest
from compile_cache.specs import EntrySpec, TensorSpec


def write_zip(path: Path, files: Mapping[str, bytes]) -> Path:
    """A zip with these members."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def plain_members(library: bytes = b"not a library", entry_points: Sequence[str] = ("run",)) -> dict[str, bytes]:
    """The members of a small package."""
    members = {"p/archive_format": b"pt2", "p/archive_version": b"0"}
    for model in (f"p/data/aotinductor/{name}" for name in entry_points):
        members[f"{model}/abc.wrapper.so"] = library
        members[f"{model}/abc.wrapper_metadata.json"] = b'{"AOTI_DEVICE_KEY": "cpu"}'
    return members


def manifest_for(package: Path, *, sources: str = "1" * 64) -> Manifest:
    """A sound manifest for a package with the entry point `run` (no weights); `sources` varies the key."""
    spec = EntrySpec("run", (TensorSpec("x", (2,), "float32", "cpu"),), ())
    return manifest_of(key_fields([spec], device="cpu", sources=sources, config={}), package)


def manifest_of(fields: Mapping[str, Any], package: Path) -> Manifest:
    """A sound manifest for a package with the entry points of these fields, none of which binds a weight."""
    names, content = [entry["name"] for entry in fields["entry_points"]], package.read_bytes()
    return Manifest(
        schema=SCHEMA,
        key=key_of(fields),
        fields=fields,
        files={PACKAGE: FileRecord(len(content), hashlib.sha256(content).hexdigest())},
        bound=dict.fromkeys(names, ()),
        literals={name: {} for name in names},
        figures={name: EntryFigures(1.0, 2.0, 3, {"add.Tensor": 3}) for name in names},
        reference=None,
        built_at="2026-01-31T12:00:00Z",
        compiler="g++ 12",
        publisher="tests",
        licence="Apache-2.0",
    )
