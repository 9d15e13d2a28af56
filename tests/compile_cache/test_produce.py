"""From build to store: nothing that crashes or is wrong gets in, and builders do not get in each other's way."""

from __future__ import annotations

import dataclasses
import multiprocessing
import subprocess

import pytest
import torch

from compile_cache import produce as produce_module
from compile_cache.build import BuildFigures
from compile_cache.compiler import find_compiler
from compile_cache.entry import EntryPoint
from compile_cache.errors import BuildFailed, SmokeFailed
from compile_cache.produce import produce
from compile_cache.proof import Call
from tests.compile_cache.packages import manifest_for, plain_members, write_zip
from tests.compile_cache.toys import Rollout, toy_entry_points

fork = multiprocessing.get_context("fork")
IDENTITY = EntryPoint("run", torch.nn.Identity(), (torch.zeros(2),), input_names=("x",))
CALLS = [Call("run", (torch.ones(2),))]


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
        return BuildFigures(manifest.figures, manifest.bound, manifest.literals, "g++")

    monkeypatch.setattr(produce_module, "build_package", fake_build)
    with pytest.raises(SmokeFailed, match="died of SIGSEGV"):
        produce([IDENTITY], store, manifest.fields, CALLS)
    assert store.entries() == []
    with pytest.raises(BuildFailed, match="not those of the key"):
        produce(toy_entry_points(), store, manifest.fields, CALLS)


class Changed(Rollout):
    """Not what was compiled: as if the compiler had been wrong."""

    def forward(self, x, ring, steps):
        x, count = super().forward(x, ring, steps)
        return x * 1.1, count


class ChangedInside(Rollout):
    """The outputs are right; only the state that it leaves is not."""

    def forward(self, x, ring, steps):
        result = super().forward(x, ring, steps)
        ring.mul_(1.1)
        return result


@pytest.mark.parametrize(("kind", "which"), [(Changed, "output 0"), (ChangedInside, "input 1")])
def test_wrong_results_never_get_into_the_store(toy, store, monkeypatch, kind, which):
    def fake_build(entry_points, out_path, options, progress):
        out_path.write_bytes(toy.entry.package.read_bytes())
        old = toy.entry.manifest
        return BuildFigures(old.figures, old.bound, old.literals, "g++")

    monkeypatch.setattr(produce_module, "build_package", fake_build)
    rollout, encode = toy.entry_points
    points = [dataclasses.replace(rollout, twin=kind(rollout.module.body, eager=True)), encode]
    with pytest.raises(SmokeFailed, match=rf"call 0 \(rollout\), {which} differs from eager's by 0\.09"):
        produce(points, store, toy.entry.manifest.fields, toy.calls)
    assert store.entries() == []
    sound = produce(toy.entry_points, store, toy.entry.manifest.fields, toy.calls)
    assert sound.manifest.reference == toy.entry.manifest.reference


def test_produce_takes_what_is_there(toy, monkeypatch):
    monkeypatch.setattr(produce_module, "build_package", lambda *a: pytest.fail("built again"))
    assert produce(toy.entry_points, toy.store, toy.entry.manifest.fields, toy.calls) == toy.entry
