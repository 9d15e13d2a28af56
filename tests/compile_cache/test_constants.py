"""Weights that do not fit a binary: each is named, and none reaches the loader."""

from __future__ import annotations

import pytest
import torch

from compile_cache import binary as binary_module
from compile_cache.binary import open_binary
from compile_cache.checks import check_constants
from compile_cache.errors import ConstantMismatch, InputMismatch
from compile_cache.specs import EntrySpec, TensorSpec
from tests.compile_cache.toys import WIDTH


def wrong_weights():
    name = "body.lin.weight"
    return {
        "missing": (lambda w: w.pop(name), f"weight {name} is missing"),
        "unknown": (lambda w: w.update(extra=torch.zeros(1)), "weight extra is not one"),
        "shape": (lambda w: w.update({name: torch.zeros(WIDTH, 9)}), rf"{name} has shape \[8, 9\], expected \[8, 8\]"),
        "rank": (lambda w: w.update({name: torch.zeros(WIDTH)}), f"{name} has shape"),
        "dtype": (lambda w: w.update({name: torch.zeros(8, 8).half()}), f"{name} has dtype float16, expected float32"),
        "transposed": (lambda w: w.update({name: torch.randn(8, 8).t()}), f"{name} is not contiguous"),
        "sliced": (lambda w: w.update({name: torch.randn(8, 16)[:, ::2]}), f"{name} is not contiguous"),
        "meta": (lambda w: w.update({name: torch.zeros(8, 8, device="meta")}), f"{name} is on meta, expected cpu"),
        "expanded": (lambda w: w.update({name: torch.zeros(1, 8).expand(8, 8)}), f"{name} is not contiguous"),
        "negated": (lambda w: w.update({name: torch.zeros(8, 8)._neg_view()}), f"{name} is a lazily negated"),
        "double": (lambda w: w.update({name: torch.zeros(8, 8).double()}), f"{name} has dtype float64"),
        "subclass": (lambda w: w.update({name: Odd(torch.zeros(8, 8))}), f"{name} is a Odd, not a plain tensor"),
        "a buffer": (lambda w: w.update({"body.shift": torch.zeros(9)}), r"body.shift has shape \[9\], expected \[8\]"),
        "no shape": (lambda w: w.update({"body.gain": torch.tensor(1.0)}), r"body.gain has shape \[\], expected \[8\]"),
        "sparse": (lambda w: w.update({name: torch.eye(8).to_sparse()}), f"{name} is not contiguous"),
        "no tensor": (lambda w: w.update({name: [1.0]}), f"{name} is a list"),
        "unused one": (lambda w: w.update({"body.unused": torch.zeros(3)}), "body.unused has shape"),
    }


class Odd(torch.Tensor):
    """What a library for quantised or sharded weights might hand over."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Odd:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    __torch_dispatch__ = classmethod(lambda cls, function, types, args=(), kwargs=None: args[0])


@pytest.fixture
def no_loader(monkeypatch) -> None:
    """Nothing wrong may get as far as native code."""
    monkeypatch.setattr(binary_module, "_load", lambda *arguments: pytest.fail("the loader was reached"))


@pytest.mark.parametrize("entry_point", ["rollout", "encode"])
@pytest.mark.parametrize("case", wrong_weights())
def test_wrong_weights(toy, no_loader, case, entry_point):
    apply, reason = wrong_weights()[case]
    weights = toy.weights()
    apply(weights[entry_point])
    with pytest.raises(ConstantMismatch, match=rf"{entry_point}: the weight .*{reason.removeprefix('weight ')}"):
        open_binary(toy.entry.package, weights, toy.entry.manifest)


def test_weights_on_another_gpu_are_named():
    """Checked without one: the spec's device type is the binary's, the index must be too."""
    spec = EntrySpec("run", (), (TensorSpec("w", (2,), "float32", "cuda"),))
    given = {"w": torch.zeros(2)}
    with pytest.raises(ConstantMismatch, match="run: the weight w is on cpu, expected cuda:1"):
        check_constants(spec, ["w"], given, torch.device("cuda:1"))


def test_weights_for_what_is_not_there(toy, no_loader):
    with pytest.raises(ConstantMismatch, match=r"encode: the weight body\..* is missing"):
        open_binary(toy.entry.package, {"rollout": toy.weights()["rollout"]}, toy.entry.manifest)
    with pytest.raises(InputMismatch, match="decode"):
        open_binary(toy.entry.package, {**toy.weights(), "decode": {}}, toy.entry.manifest)
