"""A binary runs on the device that it was made for: what counts as another one, and what does not."""

from __future__ import annotations

import pytest

from compile_cache.explain import ABSENT
from compile_cache.hardware import place_here, unlike
from compile_cache.key import key_fields

CPU = {"vector": "avx512", "target": "native", "extensions": ["avx2", "avx512f"]}
HALF = {
    "torch": "2.13.0",
    "device": "cuda",
    "gpu": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "capability": "12.0",
    "machine": "x86_64",
    "cpu": CPU,
}
PLAIN = HALF | {"device": "cpu", "gpu": None, "capability": None}
H200 = {"gpu": "NVIDIA H200", "capability": "9.0"}
FOUND = {
    "the same GPU": (HALF, {}, []),
    "a part of it, under its own name": (HALF, {"gpu": f"{HALF['gpu']} MIG 2g.48gb"}, []),
    "another generation": (HALF, H200, [("capability", "9.0", "12.0")]),
    "another processor beside the GPU": (HALF, {"cpu": CPU | {"vector": "avx2"}}, [("cpu.vector", "avx2", "avx512")]),
    "no GPU": (HALF, PLAIN, [("device", "cpu", "cuda"), ("capability", None, "12.0")]),
    "the same processor": (PLAIN, {}, []),
    "another vector level": (PLAIN, {"cpu": CPU | {"vector": "avx2"}}, [("cpu.vector", "avx2", "avx512")]),
    "an extension less": (
        PLAIN,
        {"cpu": CPU | {"extensions": ["avx2"]}},
        [("cpu.extensions", ["avx2"], ["avx2", "avx512f"])],
    ),
    "a named level": (PLAIN, {"cpu": CPU | {"target": "x86-64-v3"}}, [("cpu.target", "x86-64-v3", "native")]),
    "another architecture": (PLAIN, {"machine": "aarch64"}, [("machine", "aarch64", "x86_64")]),
    "another torch, which is no device": (PLAIN, {"torch": "2.14.0"}, []),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_is_another_device(case: str) -> None:
    made_for, changed, expected = FOUND[case]
    assert unlike(made_for, made_for | changed) == expected


def test_what_is_not_said_is_unlike() -> None:
    there = {name: value for name, value in HALF.items() if name != "capability"}
    assert unlike(there, HALF) == [("capability", "12.0", ABSENT)]


def test_a_key_made_here_is_for_here() -> None:
    fields = key_fields([], device="cpu", sources="", config={})
    assert fields["environment"] == place_here("cpu")
    assert unlike(fields["environment"], place_here("cpu")) == []
