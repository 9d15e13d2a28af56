"""What the key is made of: vector level, options, sources, described dimensions."""

from __future__ import annotations

import json
import os
import platform
import shutil
from pathlib import Path

import pytest
import torch
from torch.export import Dim

from compile_cache import cpu
from compile_cache.errors import BuildFailed
from compile_cache.key import key_of, sources_digest
from compile_cache.options import DEFAULTS, FIXED, effective_options
from compile_cache.specs import EntrySpec, describe, dynamic, entry_from_json


def test_vector_level_is_what_inductor_picks():
    if platform.machine() != "x86_64":
        pytest.skip("x86-64 only")
    from torch._inductor import config
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    for simdlen in (None, 256, 512, 128):
        with config.patch({"cpp.simdlen": simdlen}):
            picked = pick_vec_isa()
        level = cpu.vector_level(simdlen)
        words = set(level.split()) - {"avx512_bf16", "amx_fp16"}
        assert words == ({"none"} if not picked else set(str(picked).split()))
        assert ("avx512_bf16" in level) == ("-mavx512bf16" in picked.build_arch_flags())


def test_a_named_level_is_shared_and_a_missing_one_is_not(monkeypatch):
    options = effective_options("cpu", {"cpp.march": "x86-64-v3", "cpp.simdlen": 256})
    monkeypatch.setattr(cpu, "vector_level", lambda simdlen: "avx2")
    monkeypatch.setattr(cpu, "extensions", lambda: cpu.LEVELS["x86-64-v4"] | {"gfni"})
    new = cpu.cpu_fields(options)
    monkeypatch.setattr(cpu, "extensions", lambda: set(cpu.LEVELS["x86-64-v3"]))
    assert cpu.cpu_fields(options) == new
    monkeypatch.setattr(cpu, "extensions", lambda: cpu.LEVELS["x86-64-v3"] - {"bmi2"})
    assert cpu.cpu_fields(options) != new


def test_options():
    options = effective_options("cpu")
    assert options.items() >= {**DEFAULTS, **FIXED}.items()
    assert json.loads(json.dumps(options)) == options
    with pytest.raises(BuildFailed, match="fixed"):
        effective_options("cpu", {"aot_inductor.package_constants_in_so": True})
    with pytest.raises(BuildFailed, match="plain value"):
        effective_options("cpu", {"aot_inductor.metadata": {"a": "b"}})
    threads = effective_options("cpu", {"cpp.dynamic_threads": False})["cpp.threads"]
    assert threads == torch.get_num_threads()


@pytest.fixture
def pack(tmp_path) -> Path:
    (tmp_path / "a" / "pack" / "parts").mkdir(parents=True)
    (tmp_path / "a" / "pack" / "graph.py").write_text("x = 1\n")
    (tmp_path / "a" / "pack" / "parts" / "more.cu").write_text("y = 1\n")
    return tmp_path / "a" / "pack"


def test_sources_are_their_names_and_contents(pack):
    seen = [sources_digest([pack])]
    for change in (
        lambda: (pack / "graph.py").write_text("x = 2\n"),
        lambda: (pack / "parts" / "more.cu").write_text("y = 2\n"),
        lambda: (pack / "graph.py").rename(pack / "graph2.py"),
        lambda: (pack / "new.py").write_text(""),
        lambda: (pack / "parts" / "more.cu").rename(pack / "more.cu"),
    ):
        change()
        seen.append(sources_digest([pack]))
    assert len(set(seen)) == len(seen)
    assert sources_digest([pack / "graph2.py"]) != sources_digest([pack])
    with pytest.raises(FileNotFoundError):
        sources_digest([pack / "missing"])


def test_sources_are_nothing_else(pack, tmp_path):
    before = sources_digest([pack])
    assert sources_digest([shutil.copytree(pack, tmp_path / "elsewhere" / "pack")]) == before
    (pack / "__pycache__").mkdir()
    (pack / ".git").mkdir()
    for file in ("__pycache__/graph.py", ".git/hook.py", ".hidden.py", "notes.txt", "weights.safetensors", "README.md"):
        (pack / file).write_text("z")
    (pack / "graph.py").write_bytes(b"x = 1\r\n")
    (pack / "graph.py").chmod(0o755)
    os.utime(pack / "graph.py", (0, 0))
    assert sources_digest([pack]) == before
    assert sources_digest([pack / "graph.py", pack / "parts"]) == sources_digest([pack / "parts", pack / "graph.py"])


def test_derived_dimensions_and_refusals():
    height = Dim("height", min=2, max=10)
    one = describe("x", torch.zeros(16, 4), {0: 8 * height})
    assert str(one.shape[0]) == "8*height in 16..80"
    round_trip = entry_from_json(EntrySpec("run", (one,), ()).as_json())
    assert round_trip.inputs == (one,)
    assert describe("x", torch.zeros(16, 4), {0: dynamic("height", 2, 10).times(8)}) == one
    assert str(dynamic("height", 2, 10).times(4, plus=-3)) == "4*height-3 in 5..37"
    with pytest.raises(BuildFailed, match="named Dim"):
        describe("x", torch.zeros(2), {0: Dim.AUTO})
    with pytest.raises(BuildFailed, match="cannot be dynamic"):
        describe("x", torch.zeros(2), {3: height})


def test_values_json_cannot_hold():
    with pytest.raises(ValueError, match="JSON"):
        key_of({"a": object()})
    with pytest.raises(ValueError, match="JSON"):
        key_of({"a": float("nan")})
