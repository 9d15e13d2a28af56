"""A binary that does not compute what its modules compute is found out, and the modules are left as they were."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn

from compile_cache import synthetic
from compile_cache.eager import compare, distance
from compile_cache.entry import EntryPoint
from compile_cache.errors import SmokeFailed
from compile_cache.proof import Call, Proof, prove
from compile_cache.specs import constants_of


@pytest.fixture(scope="module")
def proof(toy) -> Proof:
    return prove(toy.entry.package, toy.entry.manifest, toy.calls)


def test_the_toy_agrees_and_is_left_alone(toy, proof):
    before = {name: tensor.clone() for name, tensor in constants_of(toy.entry_points[0].module).items()}
    assert compare(toy.entry_points, toy.entry.manifest, toy.calls, proof) < 1e-6
    after = constants_of(toy.entry_points[0].module)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(after[name] is tensor for name, tensor in constants_of(toy.entry_points[0].twin).items())
    assert not toy.calls[0].inputs[1].any()  # the ring that eager changes is a copy


def spoilt(proof: Proof, kind: str, call: int, position: int, spoil) -> Proof:
    calls = [list(tensors) for tensors in getattr(proof, kind)]
    calls[call][position] = spoil(calls[call][position])
    return dataclasses.replace(proof, **{kind: tuple(map(tuple, calls))})


@pytest.mark.parametrize(
    ("kind", "call", "position", "spoil", "reason"),
    [
        ("outputs", 0, 0, lambda t: t * 1.1, r"call 0 \(rollout\), output 0 differs from eager's by 0.1 of its size"),
        ("outputs", 3, 0, torch.zeros_like, r"call 3 \(encode\), output 0 differs from eager's by 1 of"),
        ("outputs", 2, 1, lambda t: t + 1, "call 2 .*output 1 differs"),
        ("inputs", 1, 1, lambda t: t.roll(1, 0), "call 1 .*input 1 differs"),  # state that a call left elsewhere
        ("inputs", 0, 0, lambda t: t * math.nan, "input 0 differs from eager's by nan"),
        ("outputs", 0, 0, lambda t: t[:1], "another shape or dtype"),
        ("outputs", 0, 0, lambda t: t.double(), "another shape or dtype"),
    ],
)
def test_each_output_and_each_input_counts(toy, proof, kind, call, position, spoil, reason):
    with pytest.raises(SmokeFailed, match=reason):
        compare(toy.entry_points, toy.entry.manifest, toy.calls, spoilt(proof, kind, call, position, spoil))


def test_the_number_of_outputs_counts(toy, proof):
    short = dataclasses.replace(proof, outputs=(proof.outputs[0][:1], *proof.outputs[1:]))
    with pytest.raises(SmokeFailed, match="call 0 has 1 outputs, eager has 2"):
        compare(toy.entry_points, toy.entry.manifest, toy.calls, short)


def test_the_tolerance_counts(toy, proof):
    off = spoilt(proof, "outputs", 0, 0, lambda t: t * 1.01)
    assert compare(toy.entry_points, toy.entry.manifest, toy.calls, off, tolerance=0.02) == pytest.approx(
        0.01, rel=1e-3
    )
    with pytest.raises(SmokeFailed, match=r"more than 0\.005"):
        compare(toy.entry_points, toy.entry.manifest, toy.calls, off, tolerance=0.005)


class Tied(nn.Module):
    """One parameter under two names, of which a compiler keeps one."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.two.weight = self.one.weight
        self.broken = broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.broken:
            raise ValueError("not today")
        return self.two(self.one(x))


def tied(module: nn.Module, toy) -> tuple[EntryPoint, object, list[Call], Proof]:
    """An entry point, a manifest in which the binary binds `two.weight`, its calls and what it would give."""
    x = torch.ones(2, 4)
    entry = EntryPoint("run", module, (x,))
    manifest = dataclasses.replace(
        toy.entry.manifest,
        fields={**toy.entry.manifest.fields, "entry_points": [entry.spec().as_json()]},
        bound={"run": ("two.weight",)},
    )
    weight = synthetic.weights(entry.spec())["two.weight"]
    return entry, manifest, [Call("run", (x,))], Proof("", ((x @ weight.T @ weight.T,),), ((x,),))


def test_names_for_one_parameter_have_one_value(toy):
    entry, manifest, calls, proof = tied(Tied(), toy)
    assert compare([entry], manifest, calls, proof) < 1e-6
    assert entry.module.one.weight is entry.module.two.weight


def test_eager_results_that_say_nothing(toy):
    entry, manifest, calls, proof = tied(Tied(broken=True), toy)
    with pytest.raises(SmokeFailed, match="run cannot be run eagerly: ValueError: not today"):
        compare([entry], manifest, calls, proof)
    endless = [Call("run", (torch.full((2, 4), math.inf),))]
    with pytest.raises(SmokeFailed, match="not finite when run eagerly"):
        compare([dataclasses.replace(entry, module=Tied())], manifest, endless, proof)


def test_distance():
    one = torch.tensor([3.0, 4.0])
    assert distance(one, one) == 0
    assert distance(one, torch.tensor([3.0, 4.5])) == pytest.approx(0.1)
    assert distance(torch.zeros(2), torch.zeros(2)) == 0
    assert distance(torch.zeros(2), one) == math.inf
    assert distance(torch.tensor([1, 2]), torch.tensor([1, 3])) > 0.4
    assert math.isnan(distance(one, one * math.nan))
