"""Why a stored binary does not fit: every difference named with both values, nothing else."""

from __future__ import annotations

import copy
import json

import pytest

from compile_cache import explain as module
from compile_cache.explain import ABSENT, Difference, differences, explain, misfits, words
from compile_cache.key import environment
from tests.compile_cache.packages import manifest_for

FIELDS = {
    "schema": 2,
    "environment": {"torch": "2.13.0", "gpu": None, "cpu": {"vector": "avx2", "extensions": ["avx", "avx2", "fma"]}},
    "options": {"max_autotune": False, "min": 1},
    "entry_points": [
        {"name": "run", "inputs": [{"name": "x", "shape": [2, {"root": "rows", "least": 1}], "dtype": "float32"}]},
    ],
}


def change(apply) -> dict:
    changed = copy.deepcopy(FIELDS)
    apply(changed)
    return changed


@pytest.mark.parametrize(
    ("apply", "expected"),
    [
        (lambda f: None, []),
        (lambda f: f["environment"].update(torch="2.12.0"), [("environment.torch", "2.13.0", "2.12.0")]),
        (lambda f: f["environment"].update(gpu="L4"), [("environment.gpu", None, "L4")]),
        (lambda f: f["environment"].pop("gpu"), [("environment.gpu", None, ABSENT)]),
        (lambda f: f["environment"].update(npu="new"), [("environment.npu", ABSENT, "new")]),
        (lambda f: f["options"].update(max_autotune=0), [("options.max_autotune", False, 0)]),
        (lambda f: f["options"].update(min=True), [("options.min", 1, True)]),
        (
            lambda f: f["environment"]["cpu"].update(extensions=["avx", "avx2"]),
            [("environment.cpu.extensions", ["avx", "avx2", "fma"], ["avx", "avx2"])],
        ),
        (
            lambda f: f["entry_points"][0]["inputs"][0].update(dtype="float64"),
            [("entry_points.run.inputs.x.dtype", "float32", "float64")],
        ),
        (
            lambda f: f["entry_points"][0]["inputs"][0].update(shape=[2, 3]),
            [("entry_points.run.inputs.x.shape", [2, {"root": "rows", "least": 1}], [2, 3])],
        ),
        (
            lambda f: f["entry_points"].append({"name": "more", "inputs": []}),
            [("entry_points.more", ABSENT, {"inputs": []})],
        ),
        (lambda f: f.update(schema=1, options={}), [
            ("schema", 2, 1), ("options.max_autotune", False, ABSENT), ("options.min", 1, ABSENT)
        ]),
    ],
)  # fmt: skip
def test_each_difference_is_named_with_both_values(apply, expected):
    assert differences(FIELDS, change(apply)) == [Difference(*item) for item in expected]


def test_in_words():
    one = Difference("environment.cpu.extensions", ["avx", "fma"], ["avx", "amx", "gfni"])
    assert str(one) == "environment.cpu.extensions: only here ['fma'], only there ['amx', 'gfni']"
    assert str(Difference("environment.gpu", None, ABSENT)) == "environment.gpu: here None, there not there"
    assert str(Difference("config", "a" * 100, 1)) == f"config: here {'a' * 71}…, there 1"
    assert Difference("a", ABSENT, None).as_json() == {"field": "a", "there": None}


def test_stored_entries_the_most_similar_first(store, small):
    fields = [manifest_for(small[1], sources=digit * 64) for digit in "123"]
    entries = [store.put(manifest, small[1]) for manifest in fields]
    (store.root / "v1" / entries[0].key / "manifest.json").write_text("{")
    here = {**fields[1].fields, "config": {"new": 1}}
    found = explain(store, here)
    assert [(item.key, len(item.differences)) for item in found] == [
        (entries[1].key, 1),
        (entries[2].key, 2),
        (entries[0].key, 0),
    ]
    assert found[2].error.startswith("the manifest is not JSON")
    assert words(found[0]) == [f"{entries[1].key[:16]}  differs in 1 field:", "    config.new: here 1, there not there"]
    assert words(found[1], most=1)[-1] == "    and 1 more"
    assert "cannot be used" in words(found[2])[0]
    [own] = [item for item in explain(store, fields[1].fields) if item.key == entries[1].key]
    assert words(own) == [f"{own.key[:16]}  fits"]
    json.dumps([item.as_json() for item in found])


def test_only_the_fields_given_are_compared(store, small):
    store.put(*small)
    assert explain(store, {"schema": 2})[0].differences == ()
    assert [item.field for item in explain(store, {"sources": "0" * 64})[0].differences] == ["sources"]


def stored(**place) -> dict:
    """A key's fields as stored here, with another environment."""
    return {"environment": {**environment("cpu"), **place}, "options": {}}


@pytest.mark.parametrize(
    ("place", "fields"),
    [
        ({}, []),
        ({"torch": "1.0"}, ["environment.torch"]),
        ({"libc": "glibc-9"}, ["environment.libc"]),
        ({"machine": "riscv"}, ["environment.machine"]),
        ({"cpu": {"vector": "vsx", "target": "native", "extensions": ["altivec"]}}, [
            "environment.cpu.vector", "environment.cpu.extensions"
        ]),
    ],
)  # fmt: skip
def test_what_cannot_run_here(place, fields):
    assert [item.field for item in misfits(stored(**place))] == fields


@pytest.mark.parametrize("device", ["cuda", "warp"])
def test_a_device_that_is_not_here(device, monkeypatch):
    monkeypatch.setattr(module.environment.__globals__["torch"].cuda, "get_device_name", _no_cuda)
    assert [item.field for item in misfits(stored(device=device))] == ["environment.device"]


def _no_cuda(device):
    raise AssertionError("Torch not compiled with CUDA enabled")


def test_a_portable_binary_fits_a_better_processor(monkeypatch):
    """Its options decide which part of the processor counts."""
    options = {"cpp.march": "x86-64-v3", "cpp.simdlen": 256}
    monkeypatch.setattr("compile_cache.cpu.vector_level", lambda simdlen: "avx2")
    monkeypatch.setattr("compile_cache.cpu.extensions", lambda: EXTENSIONS)
    fields = {"environment": environment("cpu", options), "options": options}
    monkeypatch.setattr("compile_cache.cpu.extensions", lambda: {*EXTENSIONS, "avx512f"})
    assert misfits(fields) == []
    monkeypatch.setattr("compile_cache.cpu.extensions", lambda: EXTENSIONS - {"bmi2"})
    assert misfits(fields) != []


EXTENSIONS = {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave",
              "cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}  # fmt: skip
