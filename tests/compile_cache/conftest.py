"""One toy build for all tests that need a real binary, and cheap stand-ins for those that do not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from compile_cache.entry import EntryPoint
from compile_cache.key import key_fields
from compile_cache.manifest import Manifest
from compile_cache.produce import produce
from compile_cache.proof import Call
from compile_cache.specs import constants_of
from compile_cache.store import Entry, LocalStore
from tests.compile_cache.hubs import REPO, Offer, offer
from tests.compile_cache.packages import manifest_for, plain_members, write_zip
from tests.compile_cache.toys import RING, WIDTH, toy_entry_points
from tests.fixtures.fake_hub import FakeHub


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


@pytest.fixture
def small(tmp_path: Path) -> tuple[Manifest, Path]:
    """(manifest, package) that pass every check short of loading."""
    package = write_zip(tmp_path / "small.pt2", plain_members())
    return manifest_for(package), package


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture(scope="module")
def server() -> Iterator[FakeHub]:
    """A Hub that asks nobody for a token; modules that write to it have one of their own that does."""
    with FakeHub() as hub:
        yield hub


@pytest.fixture
def hub(server: FakeHub) -> FakeHub:
    server.reset(REPO)
    return server


@pytest.fixture
def sound(hub: FakeHub, tmp_path: Path) -> Offer:
    """An entry that somebody has published."""
    made = offer(tmp_path)
    hub.repos.put(REPO, made.files())
    return made
