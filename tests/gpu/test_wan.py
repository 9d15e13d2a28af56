"""On a GPU: the 1.3B model with random weights, eagerly and compiled. Skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from compile_cache.store import LocalStore
from model.binary import build, open_parts
from model.config import read_config
from model.parts import Parts
from model.pipeline import Request
from model.published.presets import WAN_1_3B
from tests.benchmarks.gpu import stream
from tests.fixtures.random_parts import random_parts

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
REQUEST = Request("", seed=7, blocks=2, height=320, width=576)


@pytest.fixture(scope="module")
def parts() -> Parts:
    return random_parts(read_config(WAN_1_3B), "bfloat16", "cuda")


@pytest.fixture(scope="module")
def store(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    """With the binary, which has passed its proof: a trial run in a process of its own, and eager's results."""
    store = LocalStore(tmp_path_factory.mktemp("store"))
    build(parts, store)
    return store


def test_it_fits_what_the_plan_says(parts: Parts) -> None:
    torch.cuda.reset_peak_memory_stats()
    for _ in stream(open_parts(parts, "eager"), parts, REQUEST):
        pass
    assert torch.cuda.max_memory_allocated() < 48e9


def test_compiled_frames_are_eagers_but_for_rounding(parts: Parts, store: LocalStore) -> None:
    compiled, eager = open_parts(parts, "aot", [store]), open_parts(parts, "eager")
    for ours, theirs in zip(stream(compiled, parts, REQUEST), stream(eager, parts, REQUEST), strict=True):
        assert (ours.int() - theirs.int()).abs().float().mean() < 2


def test_the_binary_repeats_itself_bit_for_bit(parts: Parts, store: LocalStore) -> None:
    compiled = open_parts(parts, "aot", [store])
    first, second = (list(stream(compiled, parts, REQUEST)) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
