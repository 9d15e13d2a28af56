"""One toy build for all tests that need a real binary, and cheap stand-ins for those that do not."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from compile_cache.entry import EntryPoint
from compile_cache.key import key_fields, key_of
from compile_cache.manifest import PACKAGE, SCHEMA, EntryFigures, FileRecord, Manifest
from compile_cache.produce import produce
from compile_cache.proof import Call
from compile_cache.specs import EntrySpec, TensorSpec, constants_of
from compile_cache.store import Entry, LocalStore
from tests.compile_cache.toys import RING, WIDTH, toy_entry_points


@dataclass(frozen=True)
class Toy:
    """A built toy: its modules, its reference calls and its entry in a store of its own."""

    entry_points: list[EntryPoint]
    calls: list[Call]
    store: LocalStore
    entry: Entry
    messages: list[str]

    @property
    def key(self) -> str:
        return self.entry.key

    def weights(self) -> dict[str, dict[str, torch.Tensor]]:
        return {entry.name: constants_of(entry.module) for entry in self.entry_points}


def reference_calls() -> list[Call]:
    """Three calls on one ring, then one of size 1."""
    generator = torch.Generator().manual_seed(3)
    ring = torch.zeros(RING, WIDTH)
    rolls = [Call("rollout", (torch.randn(2, WIDTH, generator=generator), ring, torch.tensor(3))) for _ in range(3)]
    return [*rolls, Call("encode", (torch.tensor([5]),))]


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """The toy, compiled (half a minute) and stored once per session."""
    entry_points = toy_entry_points()
    fields = key_fields([entry.spec() for entry in entry_points], device="cpu", sources="0" * 64, config={"toy": 1})
    store = LocalStore(tmp_path_factory.mktemp("toy") / "store")
    messages: list[str] = []
    calls = reference_calls()
    entry = produce(
        entry_points,
        store,
        fields,
        calls,
        tolerance=1e-5,
        publisher="tests",
        licence="Apache-2.0",
        progress=messages.append,
    )
    return Toy(entry_points, calls, store, entry, messages)


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


@pytest.fixture
def small(tmp_path: Path) -> tuple[Manifest, Path]:
    """(manifest, package) that pass every check short of loading."""
    package = write_zip(tmp_path / "small.pt2", plain_members())
    return manifest_for(package), package


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")
