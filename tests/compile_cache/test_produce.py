"""From build to store: nothing that crashes or is wrong gets in, and builders do not get in each other's way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import torch

from compile_cache import produce as produce_module
from compile_cache import scratch
from compile_cache.build import BuildFigures, EntryPoint
from compile_cache.compiler import find_compiler
from compile_cache.errors import BuildFailed, SmokeFailed
from compile_cache.produce import produce
from compile_cache.smoke import Call, WeightsFrom
from compile_cache.store import LocalStore
from tests.compile_cache.conftest import manifest_for, plain_members, write_zip
from tests.compile_cache.toys import toy_entry_points

fork = multiprocessing.get_context("fork")
FUNCTION = "tests.compile_cache.toys:weights_for_child"
IDENTITY = EntryPoint("run", torch.nn.Identity(), (torch.zeros(2),), input_names=("x",))


CRASH = "__attribute__((constructor)) static void crash() { *(volatile int*)0 = 1; }\n"


@pytest.fixture(scope="module")
def crashing(tmp_path_factory) -> bytes:
    folder = tmp_path_factory.mktemp("crash")
    (folder / "crash.cpp").write_text(CRASH)
    subprocess.run([find_compiler(), "-shared", "-fPIC", "-o", folder / "crash.so", folder / "crash.cpp"], check=True)
    return (folder / "crash.so").read_bytes()


def test_a_binary_that_crashes_never_gets_into_the_store(store, tmp_path, crashing, monkeypatch):
    package = write_zip(tmp_path / "crash.pt2", plain_members(crashing))
    manifest = manifest_for(package)

    def fake_build(entry_points, out_path, options, progress):
        out_path.write_bytes(package.read_bytes())
        return BuildFigures(out_path.stat().st_size, manifest.figures, manifest.bound, manifest.literals, "g++")

    monkeypatch.setattr(produce_module, "build_package", fake_build)
    calls = [Call("run", (torch.zeros(2),))]
    with pytest.raises(SmokeFailed, match="died of SIGSEGV"):
        produce([IDENTITY], store, manifest.fields, calls=calls)
    assert store.entries() == []
    with pytest.raises(BuildFailed, match="not those of the key"):
        produce(toy_entry_points(), store, manifest.fields)


def test_wrong_results_never_get_into_the_store(toy, store, monkeypatch):
    """The modules have other weights than the binary gets: as if the compiler had been wrong."""

    def fake_build(entry_points, out_path, options, progress):
        out_path.write_bytes(toy.entry.package.read_bytes())
        old = toy.entry.manifest
        return BuildFigures(old.package.size, old.figures, old.bound, old.literals, "g++")

    monkeypatch.setattr(produce_module, "build_package", fake_build)
    fields = toy.entry.manifest.fields
    arguments = {"calls": toy.calls, "weights": WeightsFrom(FUNCTION, {"seed": 1}), "tolerance": (1e-4, 1e-5)}
    with pytest.raises(SmokeFailed, match="call 0, output 0 differs from eager's by up to"):
        produce(toy.entry_points, store, fields, **arguments)
    assert store.entries() == []


def test_produce_takes_what_is_there(toy, monkeypatch):
    monkeypatch.setattr(produce_module, "build_package", lambda *a: pytest.fail("built again"))
    assert produce(toy.entry_points, toy.store, toy.entry.manifest.fields) == toy.entry


# -- several builders, killed builders (the build itself is a stand-in here, the rest is real)


def _stand_in(small, log: Path, seconds: float, kill: bool):
    manifest, package = small

    def build(entry_points, out_path, options, progress):
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        with scratch.folder() as work:
            (work / "half.so").write_bytes(b"half")
            time.sleep(seconds)
            if kill:
                os.kill(os.getpid(), signal.SIGKILL)
        out_path.write_bytes(package.read_bytes())
        return BuildFigures(out_path.stat().st_size, manifest.figures, manifest.bound, manifest.literals, "g++")

    return build


def _produce(root: Path, small, log: Path, seconds: float, kill: bool) -> None:
    produce_module.build_package = _stand_in(small, log, seconds, kill)
    entry = produce([IDENTITY], LocalStore(root), small[0].fields)
    assert entry.key == small[0].key


def test_four_builders_of_one_key_build_once(store, small, tmp_path):
    log = tmp_path / "log"
    children = [fork.Process(target=_produce, args=(store.root, small, log, 0.3, False)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 4
    assert len(log.read_text().split()) == 1
    assert store.find(small[0].key) is not None


def test_a_builder_killed_while_building(store, small, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    log = tmp_path / "log"
    child = fork.Process(target=_produce, args=(store.root, small, log, 0.0, True))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert store.find(small[0].key) is None
    assert list(tmp_path.glob(f"{scratch.PREFIX}-*"))
    monkeypatch.setattr(produce_module, "build_package", _stand_in(small, log, 0.0, False))
    assert produce([IDENTITY], store, small[0].fields).key == small[0].key
    assert not list(tmp_path.glob(f"{scratch.PREFIX}-*"))  # what the dead one left is gone too
