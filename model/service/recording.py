"""One request's blocks, as they come in, turned into progress, stream chunks and a finished file.

Keeps what was made when the request is stopped or its source breaks off. Does not know who makes the blocks
(this process or a GPU worker), nor who watches.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..pipeline import Block, GenerationError, Request
from .forms import file_name, settings_of
from .video import Mp4Writer, TsEncoder

log = logging.getLogger(__name__)
BROKE_OFF = "The generator broke off. What it had made until then is kept; please try again."

MODE_NAMES = {"aot": "AoT", "jit": "JIT", "eager": "eager"}
NOTHING = "The generator ended before its first block. Please try again."
_ENDINGS = {"stopped": "stopped", "cancelled": "cancelled", "still": "came to rest"}


class SourceFailed(RuntimeError):
    """The source of blocks failed; the text is for visitors: what happened and what to do."""


@dataclass(frozen=True)
class Served:
    """The last thing a source of blocks sends: that it is complete, and what ran. A source that ends without it
    was cut off, however orderly the end looks."""

    mode: str  # "aot", "jit" or "eager"
    key: str | None = None  # of the binary
    source: str | None = None  # where the binary came from
    reason: str | None = None  # why it was not a binary
    problem: str | None = None  # for the visitor, if the generator ended the video before what was asked for
    seconds: float = 0.0  # that whoever made the blocks took, to the last one
    first_seconds: float = 0.0  # to the first one
    found: Mapping[str, Any] | None = None  # the environment where it ran, if not the declared one
    sought: str | None = None  # the key of the binary for that environment


@dataclass(frozen=True)
class Progress:
    """One more block is there."""

    block: int  # blocks made so far
    blocks: int  # blocks asked for
    frames: int  # frames made so far
    seconds: float  # since the start
    chunk: bytes | None  # MPEG-TS of this block, if asked for
    chunk_seconds: float  # how long it plays

    @property
    def fps(self) -> float:
        return self.frames / max(self.seconds, 1e-6)


@dataclass(frozen=True)
class Recording:
    """The end: a finished file, or none if not one block was made."""

    path: Path | None
    seconds: float  # from the start to the last frame
    report: dict[str, Any]  # JSON: settings, frames, digest, what the loop did, what served it
    problem: str | None  # for the visitor, if it is not what was asked for

    def summary(self) -> str:
        """In a few words: how it ended (if unusual), length, speed, what ran, seed."""
        if self.path is None:
            return "stopped before the first block"
        frames, mode = self.report["frames"], self.report.get("mode")
        parts = [
            _ENDINGS.get(self.report["stop_reason"]),
            f"{frames / self.report['fps']:.1f} s",
            f"{frames / max(self.seconds, 1e-6):.0f} fps",
            MODE_NAMES.get(mode, mode),
            f"seed {self.report['seed']}",
        ]
        return " · ".join(part for part in parts if part)


def record(
    source: Generator[Block | Served, None, None],
    request: Request,
    fps: int,
    folder: Path,
    *,
    stopped: Callable[[], bool] = lambda: False,
    ending: str = "stopped",
    unfinished: Callable[[Callable[[], Recording]], None] | None = None,
    chunks: bool = False,
    hint: str | None = None,
) -> Iterator[Progress | Recording]:
    """Yields a Progress for each block, then one Recording whose file lies in `folder`.

    Args:
        source: the blocks, then Served. Closed as soon as no more is wanted.
        stopped: asked after each block; True ends the video there, as a complete short one.
        ending: what the report of a video that is ended so gives as the reason.
        unfinished: where this generator is closed early, gets what finishes the file with the blocks it has and returns
            the Recording, to be called in a better moment: whoever closes must not wait for ffmpeg. Without it the file
            goes then.
        chunks: whether to encode MPEG-TS chunks.
        hint: what the report tells the visitor of the prompt, if anything.

    Raises whatever `source` raises before its first block, SourceFailed where it ends without one; its later failures
    are told in Recording.problem. Raises VideoError where ffmpeg fails, at any time.
    """
    path = Path(folder) / file_name(request)
    encoder = TsEncoder(fps, request.height, request.width) if chunks else None
    tally = _Tally(request, fps, ending, {"hint": hint} if hint else {})
    served, halted, problems = None, False, []
    try:
        if stopped():
            yield tally.recording(None, halted=True)
            return
        first = next(source, None)  # outside the writer: without a first block there is no file to keep
        if not isinstance(first, Block):
            if stopped():
                yield tally.recording(None, halted=True)
                return
            raise SourceFailed((first and first.problem) or NOTHING)
        with ExitStack() as stack:
            writer = stack.enter_context(Mp4Writer(path, fps, settings_of(request)))
            for part in _until_broken(first, source, problems):
                if isinstance(part, Served):
                    served = part
                    break
                writer.add(part.frames)
                tally.add(part)
                chunk = encoder.chunk(part.frames) if encoder else None
                try:
                    yield Progress(
                        tally.made, request.blocks, tally.frames, tally.seconds, chunk, len(part.frames) / fps
                    )
                except GeneratorExit:
                    if unfinished:
                        unfinished(_finisher(stack.pop_all(), tally, path))
                    raise
                if halted := stopped() and tally.made < request.blocks:
                    break
    finally:
        source.close()
    yield tally.recording(path, served, halted, "".join(problems))


class _Tally:
    """What is known of a video's blocks so far."""

    def __init__(self, request: Request, fps: int, ending: str, told: Mapping[str, Any]) -> None:
        self.request, self.fps, self.ending = request, fps, ending
        self.frames = self.made = 0
        self.seconds = 0.0
        self.report: dict[str, Any] = {"settings": settings_of(request), "seed": request.seed, **told}
        self._digest, self._begin = hashlib.sha256(), time.perf_counter()

    def add(self, block: Block) -> None:
        self._digest.update(block.frames.tobytes())
        self.frames += len(block.frames)
        self.made += 1
        self.seconds = time.perf_counter() - self._begin
        self.report |= block.report.as_dict()

    def recording(
        self, path: Path | None, served: Served | None = None, halted: bool = False, problem: str = ""
    ) -> Recording:
        """The end. halted: the visitor wanted no more; otherwise there is a problem where `served` is missing."""
        ended = {"stop_reason": self.ending} if halted and self.made < self.request.blocks else {}
        if path is None:
            return Recording(None, 0.0, self.report | {"frames": 0} | ended, None)
        told = served.problem if served else None if halted else problem or BROKE_OFF
        report = self.report | {"frames": self.frames, "fps": self.fps, "digest": self._digest.hexdigest()}
        report |= {"seconds": round(self.seconds, 3)} | ended
        report |= {name: getattr(served, name) for name in ("mode", "key", "source", "reason")} if served else {}
        return Recording(path, self.seconds, report | ({"problem": told} if told else {}), told)


def _finisher(writing: ExitStack, tally: _Tally, path: Path) -> Callable[[], Recording]:
    """What completes the file of a video that was broken off after any of its blocks."""

    def finish() -> Recording:
        writing.close()
        return tally.recording(path, halted=True)

    return finish


def _until_broken(first: Block, source: Iterator[Block | Served], problems: list[str]) -> Iterator[Block | Served]:
    """All parts; a failure after the first is logged and ends them, so that what was made can be kept."""
    yield first
    try:
        yield from source
    except (GenerationError, SourceFailed) as error:  # in words for visitors already
        problems.append(str(error))
    except Exception:
        log.exception("the source of blocks broke off")
