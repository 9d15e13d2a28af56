"""A recording keeps every block it was given, however the source ends, and leaves nothing else behind."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from model.pipeline import Block, GenerationError, Report, Request
from model.service.recording import BROKE_OFF, NOTHING, Progress, Recording, Served, SourceFailed, record
from model.service.video import digest, read_settings

REQUEST = Request("a red circle", seed=7, blocks=3, height=32, width=48)
SERVED = Served("aot", "k" * 64, "local cache")


class Source:
    """Three blocks, then Served; or it fails or ends early before block `until`."""

    def __init__(self, until: int = 3, error: Exception | None = None) -> None:
        self.until, self.error, self.closed = until, error, False
        self.frames = [np.full((9 if i == 0 else 12, 32, 48, 3), 60 * i + 40, np.uint8) for i in range(3)]

    def __call__(self) -> Generator[Block | Served, None, None]:
        try:
            for index in range(self.until):
                yield Block(index, self.frames[index], Report(blocks=index + 1, steps=4 * (index + 1)))
            if self.error:
                raise self.error
            if self.until == 3:
                yield SERVED
        finally:
            self.closed = True


def frames_in(path: Path) -> int:
    reader = imageio_ffmpeg.read_frames(str(path))
    next(reader)
    return sum(1 for _ in reader)


def test_a_whole_video(tmp_path: Path) -> None:
    source = Source()
    *steps, done = record(source(), REQUEST, 16, tmp_path, chunks=True)
    assert [(s.block, s.blocks, s.frames, s.chunk_seconds) for s in steps] == [
        (1, 3, 9, 9 / 16),
        (2, 3, 21, 12 / 16),
        (3, 3, 33, 12 / 16),
    ]
    assert all(isinstance(s, Progress) and s.chunk[:1] == b"G" and s.fps > 0 for s in steps)
    assert isinstance(done, Recording)
    assert done.problem is None
    assert done.path.name == "onegraph-a-red-circle-seed7.mp4"
    assert frames_in(done.path) == done.report["frames"] == 33
    assert done.report["digest"] == digest(source.frames)
    assert (done.report["mode"], done.report["key"], done.report["steps"]) == ("aot", "k" * 64, 12)
    assert read_settings(done.path) == done.report["settings"]
    assert done.summary().endswith("AoT · seed 7")
    assert source.closed


@pytest.mark.parametrize(("hint", "told"), [("the prompt is strange", {"hint": "the prompt is strange"}), (None, {})])
def test_the_report_has_the_hint_if_there_is_one(tmp_path: Path, hint: str | None, told: dict) -> None:
    *_, done = record(Source()(), REQUEST, 16, tmp_path, hint=hint)
    assert {name: value for name, value in done.report.items() if name == "hint"} == told


def test_stopping_keeps_what_was_made(tmp_path: Path) -> None:
    source = Source()
    asked = iter([False, False, True])
    *steps, done = record(source(), REQUEST, 16, tmp_path, stopped=lambda: next(asked))
    assert len(steps) == 2
    assert steps[0].chunk is None
    assert (frames_in(done.path), done.report["stop_reason"], done.problem) == (21, "stopped", None)
    assert done.summary().startswith("stopped · 1.3 s")
    assert source.closed


def test_stopped_before_it_began(tmp_path: Path) -> None:
    (done,) = record(Source()(), REQUEST, 16, tmp_path, stopped=lambda: True)
    assert (done.path, done.report["frames"], done.problem) == (None, 0, None)
    assert "before the first block" in done.summary()


@pytest.mark.parametrize("error", [None, RuntimeError("boom")], ids=["ends without its mark", "raises"])
def test_a_source_that_breaks_off_is_told(tmp_path: Path, error: Exception | None) -> None:
    source = Source(until=2, error=error)
    *steps, done = record(source(), REQUEST, 16, tmp_path)
    assert len(steps) == 2
    assert (frames_in(done.path), done.problem) == (21, BROKE_OFF)
    assert done.report["problem"] == BROKE_OFF
    assert "mode" not in done.report
    assert source.closed


def test_a_source_that_never_began_raises(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="boom"):
        list(record(Source(until=0, error=RuntimeError("boom"))(), REQUEST, 16, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_ends_without_a_block_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceFailed, match=NOTHING):
        list(record(Source(until=0)(), REQUEST, 16, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_problem_that_is_sent_as_a_value_is_told(tmp_path: Path) -> None:
    def source() -> Generator[Block | Served, None, None]:
        yield Block(0, np.zeros((9, 32, 48, 3), np.uint8), Report(blocks=1))
        yield Served("aot", problem="It went wrong in block 2.")

    *_, end = record(source(), REQUEST, 16, tmp_path)
    assert end.problem == end.report["problem"] == "It went wrong in block 2."
    assert frames_in(end.path) == 9


def test_a_watcher_who_leaves_closes_everything(tmp_path: Path) -> None:
    source = Source()
    watching = record(source(), REQUEST, 16, tmp_path)
    next(watching)
    watching.close()
    assert source.closed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("made", [1, 2, 3])
def test_what_a_watcher_who_leaves_has_seen_can_be_finished_later(tmp_path: Path, made: int) -> None:
    source, later = Source(), []
    watching = record(source(), REQUEST, 16, tmp_path, ending="cancelled", unfinished=later.append)
    for _ in range(made):
        next(watching)
    watching.close()
    assert source.closed
    (finish,) = later
    end = finish()
    assert (frames_in(end.path), end.problem) == (9 + 12 * (made - 1), None)
    assert end.report["digest"] == digest(source.frames[:made])
    assert end.report.get("stop_reason") == ("cancelled" if made < 3 else "full")
    assert read_settings(end.path) == end.report["settings"]
    assert [path.name for path in tmp_path.iterdir()] == [end.path.name]


def test_stopped_while_the_first_block_is_waited_for(tmp_path: Path) -> None:
    asked = iter([False, True])
    (end,) = record(Source(until=0)(), REQUEST, 16, tmp_path, stopped=lambda: next(asked))
    assert (end.path, end.report["stop_reason"]) == (None, "stopped")


def test_numbers_that_break_are_told_in_the_pipelines_words(tmp_path: Path) -> None:
    error = GenerationError(Report(blocks=2, stop_reason="not finite"))
    *_, end = record(Source(until=2, error=error)(), REQUEST, 16, tmp_path)
    assert end.problem == "The model's numbers are not finite in block 3; the video ends before it."
    assert frames_in(end.path) == 21
