"""Synthetic weights: the same numbers everywhere and for ever, of the right kind, and big enough to be seen."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from compile_cache import synthetic
from compile_cache.specs import EntrySpec, TensorSpec, dtype_name


def spec(*constants: TensorSpec, name: str = "run") -> EntrySpec:
    return EntrySpec(name, (), constants)


def weight(name: str = "w", shape: tuple[int, ...] = (300, 400), dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name, shape, dtype, "cpu")


def test_the_numbers_are_fixed_for_ever():
    """A change of these lines makes every stored reference digest wrong: it needs a new key.SCHEMA."""
    [tensor] = synthetic.weights(spec(weight(shape=(3,)))).values()
    assert [float(value).hex() for value in tensor] == NUMBERS
    digest = hashlib.sha256(synthetic.noise("label", (1000, 7), torch.bfloat16).view(torch.uint8).numpy().tobytes())
    assert digest.hexdigest() == DIGEST


NUMBERS = ["0x1.64e76a0000000p+0", "-0x1.73db3e0000000p+0", "0x1.c05f020000000p-1"]
DIGEST = "7a1d95db6ca84fbdd4d0e85b5d1f1269b2e4f35d62fd52b58b210a56a1059e93"

PRINT = """
import hashlib, torch
from compile_cache import synthetic
torch.manual_seed({seed})
torch.set_default_dtype(torch.{dtype})
numbers = synthetic.noise("label", (1000, 7), torch.bfloat16)
print(hashlib.sha256(numbers.view(torch.uint8).numpy().tobytes()).hexdigest())
"""


@pytest.mark.parametrize(("seed", "dtype", "threads"), [(1, "float32", "1"), (2, "float64", "2")])
def test_nothing_of_the_process_changes_them(seed, dtype, threads):
    done = subprocess.run(
        [sys.executable, "-c", PRINT.format(seed=seed, dtype=dtype)],
        cwd=Path(__file__).parents[2],
        env={"PATH": "/usr/bin", "OMP_NUM_THREADS": threads, "HOME": "/nowhere", "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == DIGEST


def test_each_weight_has_its_own_and_they_depend_on_nothing_else():
    base = synthetic.weights(spec(weight("a"), weight("b")))
    assert not torch.equal(base["a"], base["b"])
    assert torch.equal(synthetic.weights(spec(weight("a")))["a"], base["a"])
    assert torch.equal(synthetic.weights(spec(weight("a"), weight("b")), names=["a"])["a"], base["a"])
    assert list(synthetic.weights(spec(weight("a"), weight("b")), names=["b"])) == ["b"]
    assert not torch.equal(synthetic.weights(spec(weight("a"), name="walk"))["a"], base["a"])


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((4000,), 1.0),
        ((4000, 1, 1), 1.0),
        ((), 1.0),
        ((300, 400), 1 / 20),
        ((100, 16, 5, 5), 1 / 20),
        ((2, 90, 25), 1.0),
        ((90, 25, 3), 0.2),
    ],
)
def test_sizes_keep_activations_near_one(shape, size):
    tensor = synthetic.weights(spec(weight(shape=shape)))["w"]
    assert tensor.shape == shape
    if shape:
        assert tensor.std().item() == pytest.approx(size, rel=0.05)
        assert abs(tensor.mean().item()) < size / 10
    assert tensor.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_narrow_dtypes_are_the_rounded_numbers(dtype):
    exact = synthetic.noise("label", (50,), torch.float32)
    assert torch.equal(synthetic.noise("label", (50,), dtype).float(), exact.to(dtype).float())
    assert dtype_name(synthetic.noise("label", (50,), dtype).dtype) == dtype_name(dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_indices_and_flags_are_zeros(dtype):
    assert torch.equal(synthetic.noise("label", (5, 2), dtype), torch.zeros(5, 2, dtype=dtype))


def test_int8_is_the_same_numbers_as_whole_ones_of_seven_bits():
    """Zeros would prove nothing of a quantised weight; larger ones overflow on some processors."""
    whole = synthetic.noise("label", (500, 70), torch.int8)
    exact = synthetic.noise("label", (500, 70), torch.float32)
    assert whole.dtype == torch.int8
    assert sorted(set(whole.flatten().tolist())) == list(range(-63, 64))
    assert torch.equal(whole.double(), (exact.double() * 127 / math.sqrt(12)).round())
