"""Layers that multiply in 8 bits: their numbers, what of a model they replace, and that a binary is bound to them."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compile_cache.binary import open_binary
from compile_cache.eager import distance
from compile_cache.entry import EntryPoint
from compile_cache.errors import ConstantMismatch
from compile_cache.key import key_fields, key_of
from compile_cache.produce import produce
from compile_cache.proof import Call
from compile_cache.specs import constants_of, dynamic
from compile_cache.store import LocalStore
from model.binary import binary_fields, open_parts
from model.parts import load_parts
from model.pipeline import Pipeline, Request
from model.precision import VARIABLE
from model.quantised import WEIGHT_RANGES, Fp8Linear, Int8Linear, quantise
from tests.benchmarks.precision import forward
from tests.conftest import EMBEDDED, ROOT
from tests.fixtures.folders import make_folder

BLOCK_LINEARS = 10  # of a block: q, k, v and out of two attentions, and the feed-forward's two
LAYERS = {
    "int8": (lambda linear: Int8Linear(linear, WEIGHT_RANGES["cpu"]), torch.int8, 0.018),
    "int8 of all bits": (lambda linear: Int8Linear(linear, WEIGHT_RANGES["cuda"]), torch.int8, 0.014),
    "fp8": (Fp8Linear, torch.float8_e4m3fn, 0.04),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "random")


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(
    ("shape", "outputs", "bias", "dtype"),
    [
        ((2, 3, 17, 64), 48, True, torch.float32),
        ((19, 160), 32, False, torch.bfloat16),
        ((1, 1, 224), 672, True, torch.bfloat16),
    ],
)
def test_a_layer_is_near_the_one_it_replaces(kind, shape, outputs, bias, dtype):
    torch.manual_seed(0)
    make, stored, bound = LAYERS[kind]
    plain = nn.Linear(shape[-1], outputs, bias).to(dtype)
    narrow = make(plain)
    assert (narrow.weight.dtype, narrow.weight.shape) == (stored, plain.weight.shape)
    x = torch.randn(shape).to(dtype)
    got, exact = narrow(x), plain.float()(x.float())
    assert (got.shape, got.dtype) == (exact.shape, dtype)
    assert distance(exact, got) < bound


@pytest.mark.parametrize("kind", LAYERS)
def test_each_row_has_its_own_scale(kind):
    """Of input and weight alike: a small one is not lost beside large ones."""
    torch.manual_seed(0)
    make, _, bound = LAYERS[kind]
    plain, x = nn.Linear(96, 64, bias=False).requires_grad_(False), torch.randn(50, 96)
    plain.weight.mul_(10 ** torch.linspace(-4, 2, 64)[:, None])
    x.mul_(10 ** torch.linspace(-3, 3, 50)[:, None])
    sizes = torch.outer(x.norm(dim=-1), plain.weight.norm(dim=-1)) / math.sqrt(96)
    errors = (make(plain)(x) - plain(x)) / sizes
    assert errors.pow(2).mean(0).sqrt().max() < 2 * bound
    assert errors.pow(2).mean(1).sqrt().max() < 2 * bound


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0])
def test_what_is_not_finite_stays_so_and_zeros_give_the_bias(kind, value):
    plain = nn.Linear(32, 16).to(torch.bfloat16)
    x = torch.zeros(2, 32, dtype=torch.bfloat16)
    x[1, 5] = value
    first, second = LAYERS[kind][0](plain)(x)
    assert torch.equal(first, plain.bias)
    assert torch.equal(second, plain.bias) if value == 0 else not second.isfinite().any()


EXTREMES = """
import torch
from model.quantised import WEIGHT_RANGES, Int8Linear
layer = Int8Linear(torch.nn.Linear(672, 64), WEIGHT_RANGES["cpu"])
layer.weight.fill_(WEIGHT_RANGES["cpu"])
x = torch.ones(40, 672, dtype=torch.int8) * 127
print([int(torch._int_mm(sign * x, layer.weight.t()).unique()) for sign in (1, -1)])
"""


def test_sums_do_not_overflow_on_processors_without_vnni():
    """AVX2 is what the matrix library is told to take the processor for."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", EXTREMES]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    most = 127 * WEIGHT_RANGES["cpu"] * 672
    assert done.stdout.strip() == str([most, -most])


def test_the_blocks_linear_layers_are_replaced_and_held_once(folder):
    parts, plain = load_parts(folder, "int8"), load_parts(folder, "auto")
    whole = {name for name, tensor in parts.constants()["generate"].items() if tensor.dtype == torch.int8}
    layers = len(parts.generate.transformer.blocks)
    assert len(whole) == BLOCK_LINEARS * layers
    assert all(name.startswith("transformer.blocks.") and name.endswith(".weight") for name in whole)
    scales = {name.removesuffix("weight") + "scale" for name in whole}
    assert {*parts.constants()["generate"]} == {*plain.constants()["generate"], *scales}
    assert parts.size < plain.size
    for modules in (parts.modules(), parts.graph()):  # whoever runs the model refers to what a binary is given
        for entry, module in modules.items():
            given, own = parts.constants()[entry], constants_of(module)
            assert all(own[name].data_ptr() == given[name].data_ptr() for name in given if "blocks" in name)


def test_the_key_has_the_precision_and_the_code_of_its_layers(folder, monkeypatch):
    fields = {name: binary_fields(load_parts(folder, name)) for name in ("auto", "int8")}
    assert fields["int8"]["config"] == {**fields["auto"]["config"], "precision": "int8"}
    assert fields["int8"]["sources"] != fields["auto"]["sources"]
    assert len({key_of(named) for named in fields.values()}) == 2
    monkeypatch.setenv(VARIABLE, "int8")
    assert binary_fields(load_parts(folder)) == fields["int8"]  # what the app asks for


def test_the_model_runs_eagerly_and_is_near_float32(folder):
    """A random model says little of pictures; it shows that nothing is far off."""
    frames = {}
    for precision in ("float32", "int8"):
        pipeline = Pipeline(folder, open_parts(load_parts(folder, precision), "eager"))
        blocks = pipeline.stream(Request("a red ball", 3, 2, 64, 64))
        frames[precision] = np.concatenate([block.frames for block in blocks]).astype(np.int16)
    difference = np.abs(frames["float32"] - frames["int8"])
    assert 0 < difference.mean() < 3


def test_the_embedded_models_flow_stays_near_float32():
    """2.2e-2 of its size where the rest is bfloat16, which alone is 1.1e-2 away; 1.7e-2 where it is float32."""
    exact, narrow = (forward(load_parts(EMBEDDED, precision)) for precision in ("float32", "int8"))
    assert all(0.014 < distance(one, other) < 0.03 for one, other in zip(exact, narrow, strict=True))


class Narrow(nn.Module):
    """Three layers, the first two on one input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(*size) for size in ((48, 64), (48, 64), (64, 24))]
        self.layers = nn.ModuleList(layers).to(torch.bfloat16).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        first, second, last = self.layers
        return last(nn.functional.silu(first(x)) * second(x))


def test_a_binary_is_bound_to_the_layers_own_tensors(tmp_path):
    """Built, proven with synthetic weights and opened; then other weights make another result, eagerly and there."""
    module = Narrow()
    plain = copy.deepcopy(module).float()
    quantise(module, "int8", "cpu")
    x = torch.randn(2, 9, 48).to(torch.bfloat16)
    point = EntryPoint("run", module, (x,), ({1: dynamic("rows", 1, 64)},))
    fields = key_fields([point.spec()], device="cpu", sources="0" * 64, config={})
    calls = [Call("run", (torch.randn(2, rows, 48).to(torch.bfloat16),)) for rows in (1, 30)]
    entry = produce([point], LocalStore(tmp_path), fields, calls, tolerance=0.02)
    assert {f"layers.{i}.{part}" for i in range(3) for part in ("weight", "scale", "bias")} == {
        *entry.manifest.bound["run"]
    }
    binary = open_binary(entry.package, {"run": constants_of(module)}, entry.manifest)
    with torch.no_grad():
        assert distance(module(x), binary.run("run", [x])[0]) < 0.02
        assert distance(plain(x.float()), binary.run("run", [x])[0]) < 0.04
        module.layers[2].weight.neg_()
        module.layers[2].bias.zero_()
        assert distance(module(x), binary.run("run", [x])[0]) < 0.02
    with pytest.raises(ConstantMismatch, match=r"layers.0.scale is missing"):
        open_binary(entry.package, {"run": constants_of(plain)}, entry.manifest)
    wide = {name: tensor.float() for name, tensor in constants_of(module).items()}
    with pytest.raises(ConstantMismatch, match=r"has dtype float32, expected (int8|bfloat16)"):
        open_binary(entry.package, {"run": wide}, entry.manifest)
