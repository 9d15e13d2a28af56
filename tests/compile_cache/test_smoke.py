"""The trial run: its digest is reproducible, and a child that goes wrong is told of, not died of."""

from __future__ import annotations

import json

import pytest
import torch

from compile_cache.errors import SmokeFailed
from compile_cache.smoke import Call, WeightsFrom, digest_of, run_smoke
from tests.compile_cache.toys import WIDTH

FUNCTION = "tests.compile_cache.toys:weights_for_child"


def test_the_digest_is_reproducible_and_weights_may_come_from_a_function(toy):
    result = run_smoke(
        toy.entry.package, toy.entry.manifest, toy.calls, WeightsFrom(FUNCTION, {"seed": 0}), timeout=120
    )
    assert result.digest == toy.entry.manifest.reference
    assert [len(outputs) for outputs in result.outputs] == [2, 2, 2, 1]
    assert not torch.equal(toy.calls[0].inputs[0], result.outputs[0][0])
    assert not toy.calls[0].inputs[1].any()  # the caller's tensors are left alone


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("raise", "ValueError: no such weights"), ("missing", "body.gain is missing"), ("hang", "longer than 8 s")],
)
def test_faults_of_the_child(toy, fault, reason):
    weights = WeightsFrom(FUNCTION, {"seed": 0, "fault": fault})
    with pytest.raises(SmokeFailed, match=reason):
        run_smoke(toy.entry.package, toy.entry.manifest, toy.calls, weights, timeout=8 if fault == "hang" else 120)


def test_a_call_that_fails(toy):
    """A row that is not in the table: Inductor's own check aborts the process, here only the child's."""
    calls = [Call("encode", (torch.tensor([WIDTH + 5]),))]
    with pytest.raises(SmokeFailed, match="died of SIGABRT"):
        run_smoke(toy.entry.package, toy.entry.manifest, calls, toy.weights())


def test_digest():
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([[1.0], [2.0]])
    assert digest_of([one]) == digest_of([one.clone()])
    assert len({digest_of(t) for t in ([one], [other], [one.double()], [one, one], [torch.tensor(1.0)], [])}) == 6
    assert len(json.dumps(digest_of([torch.zeros(2, dtype=torch.bfloat16)]))) == 66
