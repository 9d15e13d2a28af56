"""What a forked worker sends: blocks, then how it went; and it opens the binary that came after its birth."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from compile_cache.errors import RunFailed
from compile_cache.hardware import place_here
from model.pipeline import Block, GenerationError, Report, Request
from model.runner import Held as Told
from model.runner import Origin
from model.service import serving
from model.service.platform import FAILED, MEMORY
from model.service.recording import Served
from model.service.remote import built, work
from model.service.serving import Serving

REQUEST = Request("a red circle", blocks=2)
BLOCKS = [Block(i, np.full((9, 32, 48, 3), i, np.uint8), Report(blocks=i + 1)) for i in range(2)]


class Held:
    """A pipeline of a binary."""

    def __init__(self, key: str | None, error: Exception | None = None, after: int = len(BLOCKS)) -> None:
        origin = Origin("local cache", key)
        self.runner = SimpleNamespace(mode="aot" if key else "eager", origin=origin, weights=list)
        self.error, self.after = error, after

    def stream(self, request: Request) -> Iterator[Block]:
        yield from BLOCKS[: self.after]
        if self.error:
            raise self.error


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Serving, list[Held]]]:
    """held(pipeline, ...): a Serving that opens these one after the other, and which it has opened."""

    def make(*pipelines: Held) -> tuple[Serving, list[Held]]:
        left, opened = list(pipelines), []

        def open_next(self: Serving, after: str | None = None, untried: bool = False) -> Held:
            opened.append(left.pop(0))
            return opened[-1]

        monkeypatch.setattr(serving, "load_parts", lambda folder, **named: SimpleNamespace(device=torch.device("cpu")))
        monkeypatch.setattr(serving, "binary_fields", lambda parts: {"environment": place_here("cpu")})
        monkeypatch.setattr(Serving, "_open", open_next)
        monkeypatch.setattr(serving, "Pipeline", lambda folder, runner: Held(None))
        monkeypatch.setattr(serving, "eager_runner", lambda parts, reason: None)
        return Serving(tmp_path), opened

    return make


def test_blocks_then_what_ran(held: Callable[..., Any]) -> None:
    now, opened = held(Held("k1"))
    *blocks, end = work(now, REQUEST, Told("k1", 1))
    assert blocks == BLOCKS
    assert isinstance(end, Served)
    assert (end.mode, end.key, end.source, end.problem) == ("aot", "k1", "local cache", None)
    assert end.seconds >= end.first_seconds > 0
    assert len(opened) == 1


def test_the_binary_that_came_later_is_opened_once(held: Callable[..., Any]) -> None:
    now, opened = held(Held(None), Held("k1"))
    for _ in range(3):
        *_, end = work(now, REQUEST, Told("k1", 1))
        assert (end.mode, end.key) == ("aot", "k1")
    assert len(opened) == 2


def test_what_could_not_be_opened_is_looked_for_again_when_it_came_anew(held: Callable[..., Any]) -> None:
    """A rebuilt binary has the key of the one that it replaces."""
    now, opened = held(Held(None), Held(None), Held("k1"))
    for number, mode, looked in ((1, "eager", 2), (1, "eager", 2), (2, "aot", 3)):
        *_, end = work(now, REQUEST, Told("k1", number))
        assert (end.mode, len(opened)) == (mode, looked)


def test_a_binary_that_fails_at_once_is_given_up_for_eager(held: Callable[..., Any]) -> None:
    now, opened = held(Held("k1", RunFailed("generate failed: no kernel image"), 0))
    for _ in range(2):
        *blocks, end = work(now, REQUEST, Told("k1", 1))
        assert (blocks, end.mode, end.problem) == (BLOCKS, "eager", None)
        assert "no kernel image" in end.reason
    assert len(opened) == 1


@pytest.mark.parametrize(
    ("said", "made", "words", "mode"),
    [("CUDA error: out of memory", 0, MEMORY, "aot"), ("out of memory", 1, MEMORY, "aot"), ("?", 1, FAILED, "eager")],
)
def test_a_binary_that_fails_later_ends_the_video(
    held: Callable[..., Any], said: str, made: int, words: str, mode: str
) -> None:
    now, _ = held(Held("k1", RunFailed(said), made))
    *blocks, end = work(now, REQUEST, Told("k1", 1))
    assert (blocks, end.problem) == (BLOCKS[:made], words)
    assert now.pipeline.runner.mode == mode


def test_without_a_binary_nothing_is_opened(held: Callable[..., Any]) -> None:
    now, opened = held(Held(None))
    *_, end = work(now, REQUEST, Told(None, 1))
    assert (end.mode, len(opened)) == ("eager", 1)


def test_on_other_hardware_the_parents_binary_is_not_run(
    held: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, opened = held(Held("k1"), Held(None), Held("k2"))
    place = {**place_here("cpu"), "capability": "9.0"}
    monkeypatch.setattr("model.service.serving.place_here", lambda device: place)
    for _ in range(2):  # until the parent has moved, it names its own
        *_, end = work(now, REQUEST, Told("k1", 1))
        assert (end.mode, end.found, len(opened)) == ("eager", place, 2)
    *_, end = work(now, REQUEST, Told("k2", 1))
    assert (end.mode, end.key, len(opened)) == ("aot", "k2", 3)


def test_numbers_that_break_are_sent_as_a_value(held: Callable[..., Any]) -> None:
    now, _ = held(Held("k1", GenerationError(Report(blocks=2))))
    *blocks, end = work(now, REQUEST, Told("k1", 1))
    assert len(blocks) == 2
    assert "not finite in block 3" in end.problem


def test_what_is_sent_is_small(held: Callable[..., Any]) -> None:
    now, _ = held(Held("k1"))
    for part, limit in zip(work(now, REQUEST, Told("k1", 1)), (60_000, 60_000, 1000), strict=True):
        assert len(pickle.dumps(part)) < limit


@pytest.mark.parametrize(("found", "declared"), [({"gpu": "a slice of it"}, True), ({"capability": "9.0"}, False)])
def test_a_build_bears_the_declared_name_of_the_hardware(
    held: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, found: dict[str, str], declared: bool
) -> None:
    """The parent looks for what it declared: a worker on a part of that GPU must not build under another key."""
    now, _ = held(Held(None))
    here, asked = {**place_here("cpu"), **found}, []

    def build(parts: Any, environment: dict[str, Any]) -> Any:
        asked.append(environment)
        size = SimpleNamespace(package=SimpleNamespace(size=1))
        return SimpleNamespace(key="k", manifest=size, package="package.pt2")

    monkeypatch.setattr("model.service.remote.build", build)
    monkeypatch.setattr("model.service.serving.place_here", lambda device: here)
    assert built(now)["key"] == "k"
    assert asked == [place_here("cpu") if declared else here]
