"""Neither variables nor the caller's settings reach the generated code, beside those that are in the key."""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from compile_cache import settled as module
from compile_cache.errors import BuildFailed
from compile_cache.settled import STEERING, settled

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def defaults() -> dict:
    return module._defaults()


@pytest.fixture
def quick(defaults, monkeypatch) -> None:
    """The defaults are read once per module rather than once per use."""
    monkeypatch.setattr(module, "_defaults", lambda: defaults)


def test_the_settings_that_matter_are_among_the_defaults(defaults):
    inductor = defaults["torch._inductor.config"]
    assert len(inductor) > 400
    assert inductor["cpp.max_horizontal_fusion_size"] == 16
    assert inductor["size_asserts"] is True
    assert inductor["post_grad_custom_post_pass"] is None
    assert not [name for name in inductor if name.startswith(("trace.", "compile_threads", "fx_graph_cache"))]
    assert {"torch._dynamo.config", "torch._functorch.config", "torch.fx.experimental._config"} < defaults.keys()


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("torch._inductor.config", "cpp.max_horizontal_fusion_size", 1),
        ("torch._inductor.config", "size_asserts", False),
        ("torch._inductor.config", "pattern_matcher", False),
        ("torch._inductor.config", "post_grad_custom_post_pass", print),
        ("torch._inductor.config", "max_autotune_gemm_backends", "TRITON"),
        ("torch._functorch.config", "functionalize_rng_ops", True),
        ("torch._dynamo.config", "assume_static_by_default", False),
        ("torch.fx.experimental._config", "use_duck_shape", False),
    ],
)
def test_what_the_process_has_set_does_not_count(quick, defaults, name, setting, value):
    config = importlib.import_module(name)
    with config.patch({setting: value}):
        with settled():
            assert getattr(config, setting) == defaults[name][setting] != value
        assert getattr(config, setting) == value


def test_state_outside_the_compiler(quick):
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("medium")
    torch._C._set_mkldnn_enabled(False)
    try:
        with torch.autocast("cpu"):
            with settled():
                assert torch.get_default_dtype() == torch.float32
                assert not torch.are_deterministic_algorithms_enabled()
                assert torch.get_float32_matmul_precision() == "highest"
                assert torch.backends.mkldnn.enabled
                assert not torch.is_autocast_enabled("cpu")
            assert torch.is_autocast_enabled("cpu")
        assert torch.get_default_dtype() == torch.float64
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.get_float32_matmul_precision() == "medium"
        assert not torch.backends.mkldnn.enabled
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
        torch._C._set_mkldnn_enabled(True)


@pytest.mark.parametrize(
    ("name", "removed"),
    [
        ("TORCHINDUCTOR_DEBUG_COMPILE", True),
        ("AOT_INDUCTOR_ENABLE_LTO", True),
        ("TORCHDYNAMO_SUPPRESS_ERRORS", True),
        ("TRITON_INTERPRET", True),
        ("TORCHINDUCTOR_CACHE_DIR", False),
        ("TORCHINDUCTOR_COMPILE_THREADS", False),
        ("TRITON_PTXAS_PATH", False),
        ("TORCH_LOGS", False),
        ("HOME", False),
        ("CXX", False),
    ],
)
def test_variables_are_removed_and_put_back(quick, monkeypatch, name, removed):
    monkeypatch.setenv(name, "1")
    assert bool(STEERING.fullmatch(name)) == removed
    with settled():
        assert (name in os.environ) != removed
    assert os.environ[name] == "1"


def test_a_failure_inside_puts_everything_back(quick, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_DEBUG_COMPILE", "1")
    with pytest.raises(ZeroDivisionError), settled():
        raise ZeroDivisionError
    assert os.environ["TORCHINDUCTOR_DEBUG_COMPILE"] == "1"


def test_defaults_that_cannot_be_read(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(BuildFailed, match="default settings cannot be read"), settled():
        pass


BUILD = """
import sys, torch
from pathlib import Path
from torch import nn
if sys.argv[2] == "steered":
    import torch._inductor.config, torch._functorch.config
    torch._inductor.config.pattern_matcher = False
    torch._inductor.config.allow_buffer_reuse = False
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
from compile_cache.build import build_package
from compile_cache.entry import EntryPoint
from tests.compile_cache.test_settled import Mixed
torch.manual_seed(0)
inputs = (torch.ones(2, 16, 32, dtype=torch.float32), torch.arange(16))
build_package([EntryPoint("run", Mixed().float(), inputs)], Path(sys.argv[1]), {"cpp.simdlen": 256})
"""
STEERED = {
    "TORCHINDUCTOR_DEBUG_COMPILE": "1", "TORCHINDUCTOR_CPP_MAX_HORIZONTAL_FUSION_SIZE": "1",
    "TORCHINDUCTOR_SIZE_ASSERTS": "0", "TORCHINDUCTOR_NAN_ASSERTS": "1", "AOT_INDUCTOR_ENABLE_LTO": "1",
    "TORCHINDUCTOR_DISABLED_PASSES": "joint_graph_passes", "TORCHINDUCTOR_CPP_MARCH": "x86-64",
    "TORCHINDUCTOR_FREEZING": "1", "LANG": "tr_TR.UTF-8", "TZ": "Asia/Tokyo",
}  # fmt: skip


class Mixed(torch.nn.Module):
    """Something of what the settings above act on."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32), torch.nn.LayerNorm(32)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = self.down(torch.nn.functional.gelu(self.up(self.norm(x)))) + x
        mixed = torch.softmax(hidden @ hidden.transpose(-1, -2), -1) @ hidden
        both = torch.cat([hidden, mixed, torch.tanh(hidden) * torch.sigmoid(mixed)], -1)
        return both.sum(1), hidden.index_select(1, index), torch.full((4,), 1.5)


def test_the_same_bytes_whatever_the_variables_and_settings(tmp_path):
    """In one folder, emptied in between: Inductor writes its path into its sources, whose hash names them."""
    place = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "work"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    digests = {}
    for how, variables in (("plain", {}), ("steered", STEERED)):
        out = tmp_path / f"{how}.pt2"
        command = [sys.executable, "-c", BUILD, str(out), how]
        environment = {**os.environ, **place, **variables}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        digests[how] = hashlib.sha256(out.read_bytes()).hexdigest()
        shutil.rmtree(tmp_path / "work")
    assert digests["plain"] == digests["steered"]
