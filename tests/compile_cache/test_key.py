"""Each field changes the key when it changes; nothing else does."""

from __future__ import annotations

import copy
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

from compile_cache.key import FIELD_NAMES, environment, key_fields, key_of
from compile_cache.options import DEFAULTS, FIXED
from compile_cache.specs import EntrySpec, describe, describe_constants, dynamic


def spec(**changes) -> EntrySpec:
    rows = Dim("rows", min=1, max=8)
    inputs = (describe("x", torch.zeros(3, 4), {0: rows}), describe("n", torch.tensor(1)))
    constants = describe_constants(nn.Linear(4, 4))
    return EntrySpec(**{"name": "run", "inputs": inputs, "constants": constants, **changes})


def fields(**changes) -> dict:
    base = {"device": "cpu", "sources": "a" * 64, "config": {"layers": 2}, "kernels": {"attention": "1.0"}}
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


def with_input(**changes) -> dict:
    """The base entry point with another first input."""
    given = {"name": "x", "example": torch.zeros(3, 4), "dims": {0: Dim("rows", min=1, max=8)}, **changes}
    first = describe(given["name"], given["example"], given["dims"])
    return {"entry_points": [spec(inputs=(first, spec().inputs[1]))]}


def with_constants(module: nn.Module, device: str | None = None) -> dict:
    found = describe_constants(module)
    return {"entry_points": [spec(constants=tuple(replace(item, device=device or item.device) for item in found))]}


def renamed(module: nn.Module) -> nn.Module:
    module.gain = module.weight
    del module.weight
    return module


CALLER = {
    "sources": {"sources": "b" * 64},
    "config, a value": {"config": {"layers": 3}},
    "config, one more": {"config": {"layers": 2, "heads": 1}},
    "kernel version": {"kernels": {"attention": "2.0"}},
    "another kernel": {"kernels": {"attention": "1.0", "norm": "1.0"}},
    "entry point's name": {"entry_points": [spec(name="other")]},
    "another entry point": {"entry_points": [spec(), spec(name="other")]},
    "input's name": with_input(name="y"),
    "input's dtype": with_input(example=torch.zeros(3, 4).half()),
    "input's fixed size": with_input(example=torch.zeros(3, 5)),
    "input's rank": with_input(example=torch.zeros(3, 4, 1)),
    "input's device": with_input(example=torch.zeros(3, 4, device="meta")),
    "input not dynamic": with_input(dims=None),
    "dynamic dimension's name": with_input(dims={0: Dim("lines", min=1, max=8)}),
    "dynamic dimension's least": with_input(dims={0: Dim("rows", min=2, max=8)}),
    "dynamic dimension's most": with_input(dims={0: Dim("rows", min=1, max=9)}),
    "dynamic dimension's factor": with_input(dims={0: dynamic("rows", 1, 8).times(2)}),
    "dynamic dimension's offset": with_input(dims={0: dynamic("rows", 1, 8).times(1, plus=1)}),
    "one input less": {"entry_points": [spec(inputs=spec().inputs[:1])]},
    "order of the inputs": {"entry_points": [spec(inputs=spec().inputs[::-1])]},
    "constant's name": with_constants(renamed(nn.Linear(4, 4))),
    "constant's dtype": with_constants(nn.Linear(4, 4).half()),
    "constant's shape": with_constants(nn.Linear(4, 5)),
    "constant's device": with_constants(nn.Linear(4, 4), device="cuda"),
    "one constant less": with_constants(nn.Linear(4, 4, bias=False)),
}


@pytest.mark.parametrize("what", CALLER)
def test_what_the_caller_says_changes_the_key(what):
    assert key_of(fields(**CALLER[what])) != key_of(fields())


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_compiler_option_changes_the_key(name):
    value = DEFAULTS[name]
    other = not value if isinstance(value, bool) else f"{value}x" if isinstance(value, str) else (value or 0) + 1
    if name == "cpp.march":
        other = "x86-64-v3"
    changed = fields(options={name: other})
    assert changed["options"][name] == other
    assert key_of(changed) != key_of(fields())


def test_options_that_make_a_package_ours_are_in_the_key_too(monkeypatch):
    before = fields()
    for name, value in FIXED.items():
        monkeypatch.setitem(FIXED, name, "another value")
        assert key_of(fields()) != key_of(before), name
        monkeypatch.setitem(FIXED, name, value)
    assert fields() == before


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("compile_cache.key.SCHEMA", 99),
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


@pytest.fixture
def gpu(monkeypatch) -> None:
    """What torch says on a machine with a GPU."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "RTX PRO 6000")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 0))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr("compile_cache.key._version", lambda name: "3.5")


def test_gpu_fields(gpu):
    one = environment("cuda")
    assert (one["gpu"], one["capability"], one["device"], one["cuda"], one["triton"]) == (
        "RTX PRO 6000", "12.0", "cuda", "13.0", "3.5"
    )  # fmt: skip
    assert one["cpu"]["target"] == "x86-64-v3" or platform.machine() != "x86_64"
    assert environment("cpu")["triton"] is None  # generates nothing for a CPU
    assert key_of(fields(device="cuda")) != key_of(fields(device="cpu"))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("torch.cuda.get_device_name", lambda device: "RTX PRO 5000"),
        ("torch.cuda.get_device_capability", lambda device: (9, 0)),
        ("torch.version.cuda", "12.8"),
        ("compile_cache.key._version", lambda name: "3.6"),
    ],
)
def test_what_the_gpu_is_changes_the_key(gpu, where, value, monkeypatch):
    before = key_of(fields(device="cuda"))
    monkeypatch.setattr(where, value)
    assert key_of(fields(device="cuda")) != before


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
import sys, time, torch
time.time = lambda: 4e9
time.monotonic = lambda: 1e6
sys.path.insert(0, {root!r})
torch.manual_seed(77)  # the weights of the modules described
torch.set_num_threads(2)
import tests.compile_cache.test_key as module
print(module.key_of(module.fields()))
"""


def test_home_user_paths_time_and_other_variables_do_not_change_the_key(tmp_path):
    """The package lies in another folder there, among other files; the process runs elsewhere and as somebody else."""
    root = Path(__file__).parents[2]
    for folder in ("compile_cache", "tests/compile_cache"):
        shutil.copytree(root / folder, tmp_path / "here" / folder)
    (tmp_path / "here" / "tests" / "__init__.py").write_text("")
    (tmp_path / "here" / "compile_cache" / "notes.txt").write_text("not ours")
    noise = {
        "HOME": str(tmp_path), "USER": "somebody", "LOGNAME": "somebody", "TZ": "Asia/Tokyo", "LANG": "tr_TR.UTF-8",
        "TMPDIR": str(tmp_path), "ONEGRAPH_CACHE": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "HOSTNAME": "x",
        "TORCHINDUCTOR_CPP_MARCH": "x86-64-v2", "TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCHINDUCTOR_SIZE_ASSERTS": "0",
        "AOT_INDUCTOR_ENABLE_LTO": "1", "CXX": "/nowhere/g++", "CFLAGS": "-O0", "PYTHONHASHSEED": "7",
        "HF_TOKEN": "hf_x", "CUDA_VISIBLE_DEVICES": "", "LD_LIBRARY_PATH": "/nowhere",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PRINT_KEY.format(root=str(tmp_path / "here"))],
        env={**os.environ, **noise, "PYTHONPATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == key_of(fields())
