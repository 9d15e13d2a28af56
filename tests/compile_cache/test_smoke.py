"""The trial run: its digest is reproducible, and a child that goes wrong is told of, not died of."""

from __future__ import annotations

import json
import subprocess

import pytest
import torch

from compile_cache import produce as produce_module
from compile_cache.build import BuildFigures, EntryPoint, find_compiler
from compile_cache.errors import BuildFailed, SmokeFailed
from compile_cache.produce import produce
from compile_cache.smoke import Call, WeightsFrom, digest_of, run_smoke
from tests.compile_cache.conftest import manifest_for, plain_members, write_zip
from tests.compile_cache.toys import WIDTH, toy_entry_points

FUNCTION = "tests.compile_cache.toys:weights_for_child"


def test_the_digest_is_reproducible_and_weights_may_come_from_a_function(toy):
    result = run_smoke(
        toy.entry.package, toy.entry.manifest, toy.calls, WeightsFrom(FUNCTION, {"seed": 0}), timeout=120
    )
    assert result.digest == toy.entry.manifest.reference
    assert [len(outputs) for outputs in result.outputs] == [2, 2, 2, 1]
    assert not torch.equal(toy.calls[0].inputs[0], result.outputs[0][0])
    assert not toy.calls[0].inputs[1].any()  # the caller's tensors are left alone


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("raise", "ValueError: no such weights"), ("missing", "body.gain is missing"), ("hang", "longer than 8 s")],
)
def test_faults_of_the_child(toy, fault, reason):
    weights = WeightsFrom(FUNCTION, {"seed": 0, "fault": fault})
    with pytest.raises(SmokeFailed, match=reason):
        run_smoke(toy.entry.package, toy.entry.manifest, toy.calls, weights, timeout=8 if fault == "hang" else 120)


def test_a_call_that_fails(toy):
    """A row that is not in the table: Inductor's own check aborts the process, here only the child's."""
    calls = [Call("encode", (torch.tensor([WIDTH + 5]),))]
    with pytest.raises(SmokeFailed, match="died of SIGABRT"):
        run_smoke(toy.entry.package, toy.entry.manifest, calls, toy.weights())


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
    point = EntryPoint("run", torch.nn.Identity(), (torch.zeros(2),), ("x",))
    calls = [Call("run", (torch.zeros(2),))]
    with pytest.raises(SmokeFailed, match="died of SIGSEGV"):
        produce([point], store, manifest.fields, calls=calls)
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


def test_digest():
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([[1.0], [2.0]])
    assert digest_of([one]) == digest_of([one.clone()])
    assert len({digest_of(t) for t in ([one], [other], [one.double()], [one, one], [torch.tensor(1.0)], [])}) == 6
    assert len(json.dumps(digest_of([torch.zeros(2, dtype=torch.bfloat16)]))) == 66
