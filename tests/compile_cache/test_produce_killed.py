"""Several builders of one key, and builders that are killed: one build, and never a half of one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from compile_cache import build as build_module
from compile_cache import produce as produce_module
from compile_cache import scratch
from compile_cache.build import BuildFigures, Progress
from compile_cache.entry import EntryPoint
from compile_cache.key import key_fields
from compile_cache.manifest import Manifest
from compile_cache.produce import produce
from compile_cache.proof import Call, Proof
from compile_cache.store import LocalStore
from tests.compile_cache.killing import die

fork = multiprocessing.get_context("fork")
IDENTITY = EntryPoint("run", torch.nn.Identity(), (torch.zeros(2),), input_names=("x",))
CALLS = [Call("run", (torch.ones(2),))]


def proven(package: Path, manifest: Manifest, calls: list[Call], timeout: float) -> Proof:
    return Proof("a" * 64, tuple(call.inputs for call in calls), tuple(call.inputs for call in calls))


def stand_in(small: tuple[Manifest, Path], log: Path, seconds: float = 0.0) -> Callable[..., BuildFigures]:
    """Takes the place of the compiler: gives `small` after some seconds, and notes in `log` that it was asked."""
    manifest, package = small

    def build(entry_points: list, out: Path, options: dict | None, progress: Progress) -> BuildFigures:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(seconds)
        out.write_bytes(package.read_bytes())
        return BuildFigures(manifest.figures, manifest.bound, manifest.literals, "g++")

    return build


def produce_small(root: Path, small: tuple[Manifest, Path], log: Path, seconds: float = 0.0) -> None:
    """In a child: builds `small` into the store."""
    produce_module.build_package = stand_in(small, log, seconds)
    produce_module.prove = proven
    entry = produce([IDENTITY], LocalStore(root), small[0].fields, CALLS)
    assert (entry.key, entry.manifest.reference) == (small[0].key, "a" * 64)


def test_four_builders_of_one_key_build_once(store, small, tmp_path):
    log = tmp_path / "log"
    children = [fork.Process(target=produce_small, args=(store.root, small, log, 0.3)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0] * 4
    assert len(log.read_text().split()) == 1
    assert store.find(small[0].key) is not None


def half_built(entry_points: list, out: Path, options: dict | None, progress: Progress) -> None:
    with scratch.folder() as work:
        (work / "half.so").write_bytes(b"half")
        out.write_bytes(b"PK half")
        die()


# Where a builder dies, with a stand-in for the compiler. Later points, in the store, are in test_store_races.py.
POINTS = {
    "before anything is compiled": ("build_package", die),
    "with half a package": ("build_package", half_built),
    "with the package, before its manifest": ("_manifest", die),
    "in the trial run": ("prove", die),
    "before it is compared with eager": ("compare", die),
}


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_building(store, small, tmp_path, monkeypatch, point):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    name, replacement = POINTS[point]

    def child() -> None:
        produce_module.build_package, produce_module.prove = stand_in(small, tmp_path / "log"), proven
        setattr(produce_module, name, replacement)
        produce([IDENTITY], LocalStore(store.root), small[0].fields, CALLS)

    killed = fork.Process(target=child)
    killed.start()
    killed.join(120)
    assert killed.exitcode == -signal.SIGKILL
    assert (store.find(small[0].key), store.quarantined()) == (None, [])
    assert list(tmp_path.glob(f"{scratch.PREFIX}-*"))
    monkeypatch.setattr(produce_module, "build_package", stand_in(small, tmp_path / "log"))
    monkeypatch.setattr(produce_module, "prove", proven)
    assert produce([IDENTITY], store, small[0].fields, CALLS).key == small[0].key
    assert not list(tmp_path.glob(f"{scratch.PREFIX}-*"))  # what the dead one left is gone too


REAL = """
import os, signal, sys, threading, time
from tests.compile_cache.test_produce_killed import real
def die_in_the_compiler():
    while not any(name.endswith(".cpp") for _, _, names in os.walk(os.environ["TMPDIR"]) for name in names):
        time.sleep(0.01)
    print("compiling", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "killed":
    threading.Thread(target=die_in_the_compiler, daemon=True).start()
print(real(sys.argv[1]).key)
"""


def real(root: str):
    """Builds the identity for real."""
    fields = key_fields([IDENTITY.spec()], device="cpu", sources="0" * 64, config={})
    return produce([IDENTITY], LocalStore(Path(root)), fields, CALLS)


def test_killed_in_a_real_compiler(store, tmp_path):
    # Inductor notes its folder in the environment, where an earlier build of this process may have left it.
    place = {"TMPDIR": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    env = {**os.environ, **place, "PYTHONPATH": str(Path(build_module.__file__).parents[1])}

    def start(how: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", REAL, str(store.root), how]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)

    done = start("killed")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "compiling\n"), done.stderr
    assert (store.entries(), store.quarantined()) == ([], [])
    assert list(tmp_path.glob(f"{scratch.PREFIX}-*"))
    done = start("let through")
    assert done.returncode == 0, done.stderr
    assert store.entries() == [done.stdout.strip()]
    assert not list(tmp_path.glob(f"{scratch.PREFIX}-*"))
