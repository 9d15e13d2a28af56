"""Each field changes the key when it changes; nothing else does."""

from __future__ import annotations

import copy
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

from compile_cache import cpu
from compile_cache.errors import BuildFailed
from compile_cache.key import FIELD_NAMES, environment, key_fields, key_of, sources_digest
from compile_cache.options import DEFAULTS, FIXED, effective_options
from compile_cache.specs import EntrySpec, describe, describe_constants, dynamic, entry_from_json


def spec(**changes) -> EntrySpec:
    rows = Dim("rows", min=1, max=8)
    inputs = (describe("x", torch.zeros(3, 4), {0: rows}), describe("n", torch.tensor(1)))
    constants = describe_constants(nn.Linear(4, 4))
    return EntrySpec(**{"name": "run", "inputs": inputs, "constants": constants, **changes})


def fields(**changes) -> dict:
    base = {"device": "cpu", "sources": "a" * 64, "config": {"layers": 2}}
    points = changes.pop("entry_points", [spec()])
    return key_fields(points, **{**base, **changes})


def leaves(data, path=()):
    if isinstance(data, dict):
        for name, value in data.items():
            yield from leaves(value, (*path, name))
        yield path, "new name"
    elif isinstance(data, list) and data:
        for index, value in enumerate(data):
            yield from leaves(value, (*path, index))
    else:
        yield path, "value"


def test_every_leaf_changes_the_key():
    original = fields()
    assert set(original) == set(FIELD_NAMES)
    keys = {key_of(original)}
    count = 0
    for path, kind in leaves(original):
        changed = copy.deepcopy(original)
        place = changed
        for step in path if kind == "new name" else path[:-1]:
            place = place[step]
        place["another" if kind == "new name" else path[-1]] = "changed"
        keys.add(key_of(changed))
        count += 1
    assert count > 80
    assert len(keys) == count + 1


@pytest.mark.parametrize(
    "change",
    [
        {"sources": "b" * 64},
        {"config": {"layers": 3}},
        {"options": {"cpp.march": "x86-64-v3"}},
        {"options": {"cpp.simdlen": 256}},
        {"options": {"max_autotune": True}},
        {"kernels": {"attention": "1.0"}},
        {"entry_points": [spec(name="other")]},
        {"entry_points": [spec(constants=describe_constants(nn.Linear(4, 4).half()))]},
        {"entry_points": [spec(constants=describe_constants(nn.Linear(4, 4, bias=False)))]},
        {"entry_points": [spec(inputs=(describe("x", torch.zeros(3, 4)), describe("n", torch.tensor(1))))]},
        {"entry_points": [spec(inputs=(describe("n", torch.tensor(1)),))]},
        {"entry_points": [spec(inputs=(describe("x", torch.zeros(3, 4), {0: Dim("rows", min=1, max=9)}),))]},
        {"entry_points": [spec(), spec(name="other")]},
    ],
)
def test_what_the_caller_says_changes_the_key(change):
    assert key_of(fields(**change)) != key_of(fields())


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("torch.__version__", "9.9.9"),
        ("torch.version.git_version", "0" * 40),
        ("torch.version.cuda", "99.0"),
        ("torch.version.hip", "9"),
        ("platform.machine", lambda: "riscv128"),
        ("platform.libc_ver", lambda: ("glibc", "9.99")),
        ("sys.platform", "plan9"),
        ("torch._C._GLIBCXX_USE_CXX11_ABI", False),
        ("compile_cache.cpu.extensions", lambda: {"sse4_2"}),
        ("compile_cache.cpu.vector_level", lambda simdlen: "avx2"),
    ],
)
def test_what_the_machine_is_changes_the_key(where, value, monkeypatch):
    before = key_of(fields())
    monkeypatch.setattr(where, value)
    assert key_of(fields()) != before


def test_gpu_fields(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "RTX PRO 6000")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 0))
    one = environment("cuda")
    assert (one["gpu"], one["capability"], one["device"]) == ("RTX PRO 6000", "12.0", "cuda")
    assert one["cpu"]["target"] == "x86-64-v3" or platform.machine() != "x86_64"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert environment("cuda") != one
    monkeypatch.setattr("compile_cache.key._version", lambda name: "99")
    assert environment("cuda")["triton"] == "99"
    assert environment("cpu")["triton"] is None


def test_weight_values_and_order_do_not_change_the_key():
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    assert not torch.equal(one.weight, other.weight)
    points = [spec(constants=describe_constants(m)) for m in (one, other, nn.Linear(4, 4, device="meta"))]
    assert points[0] == points[1]
    assert describe_constants(nn.Linear(4, 4, device="meta"))[0].device == "meta"
    pair = [spec(), spec(name="other")]
    assert key_of(fields(entry_points=pair)) == key_of(fields(entry_points=pair[::-1]))
    assert key_of(fields(config={"a": 1, "b": 2})) == key_of(fields(config={"b": 2, "a": 1}))


PRINT_KEY = """
from tests.compile_cache.test_key import fields, key_of
print(key_of(fields()))
"""


def test_home_user_paths_time_and_other_variables_do_not_change_the_key(tmp_path):
    root = Path(__file__).parents[2]
    noise = {
        "HOME": str(tmp_path), "USER": "somebody", "LOGNAME": "somebody", "TZ": "Asia/Tokyo", "LANG": "tr_TR.UTF-8",
        "TMPDIR": str(tmp_path), "ONEGRAPH_CACHE": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "OMP_NUM_THREADS": "2", "TORCHINDUCTOR_CPP_MARCH": "x86-64-v2", "CXX": "/nowhere/g++", "PYTHONHASHSEED": "7",
    }  # fmt: skip
    environment = {**os.environ, **noise, "PYTHONPATH": str(root)}
    out = subprocess.run(
        [sys.executable, "-c", PRINT_KEY], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == key_of(fields())


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


def make_sources(folder: Path) -> Path:
    (folder / "pack" / "training").mkdir(parents=True)
    (folder / "pack" / "graph.py").write_text("x = 1\n")
    (folder / "pack" / "training" / "train.py").write_text("y = 1\n")
    return folder / "pack"


def test_sources_digest(tmp_path):
    pack = make_sources(tmp_path / "a")
    before = sources_digest([pack])
    moved = shutil.copytree(pack, tmp_path / "elsewhere" / "pack")
    assert sources_digest([moved]) == before
    (pack / "__pycache__").mkdir()
    (pack / "__pycache__" / "graph.py").write_text("z")
    (pack / ".hidden.py").write_text("z")
    (pack / "notes.txt").write_text("z")
    (pack / "graph.py").write_bytes(b"x = 1\r\n")
    assert sources_digest([pack]) == before
    without = sources_digest([pack], exclude=["training"])
    (pack / "training" / "train.py").write_text("y = 2\n")
    assert sources_digest([pack], exclude=["training"]) == without != before
    assert sources_digest([pack]) != before
    (pack / "graph.py").write_text("x = 2\n")
    assert sources_digest([pack], exclude=["training"]) != without
    (pack / "graph.py").rename(pack / "graph2.py")
    renamed = sources_digest([pack], exclude=["training"])
    (pack / "graph2.py").rename(pack / "graph.py")
    assert renamed != sources_digest([pack], exclude=["training"])
    assert sources_digest([pack / "graph.py"]) != sources_digest([pack])
    with pytest.raises(FileNotFoundError):
        sources_digest([tmp_path / "missing"])


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
