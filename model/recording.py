"""One request's blocks, as they come in, turned into progress, stream chunks and a finished file.

Keeps what was made when the request is stopped or its source breaks off. Does not know who makes the blocks
(this process or a GPU worker), nor who watches.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .forms import file_name, settings_of
from .pipeline import Block, GenerationError, Request
from .video import Mp4Writer, TsEncoder

log = logging.getLogger(__name__)
BROKE_OFF = "The generator broke off. What it had made until then is kept; please try again."

MODE_NAMES = {"aot": "AoT", "jit": "JIT", "eager": "eager"}
NOTHING = "The generator ended before its first block. Please try again."
_ENDINGS = {"stopped": "stopped", "still": "came to rest"}


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
    chunks: bool = False,
) -> Iterator[Progress | Recording]:
    """Yields a Progress for each block, then one Recording whose file lies in `folder`.

    Args:
        source: the blocks, then Served. Closed as soon as no more is wanted.
        stopped: asked after each block; True ends the video there, as a complete short one.
        chunks: whether to encode MPEG-TS chunks.

    Raises whatever `source` raises before its first block, SourceFailed where it ends without one; its later failures
    are told in Recording.problem. Raises VideoError where ffmpeg fails, at any time.
    """
    path = Path(folder) / file_name(request)
    encoder = TsEncoder(fps, request.height, request.width) if chunks else None
    report: dict[str, Any] = {"settings": settings_of(request), "seed": request.seed}
    running, frames, made, seconds, served, halted = hashlib.sha256(), 0, 0, 0.0, None, False
    problems: list[str] = []
    begin = time.perf_counter()
    try:
        if stopped():
            yield Recording(None, 0.0, report | {"frames": 0, "stop_reason": "stopped"}, None)
            return
        first = next(source, None)  # outside the writer: without a first block there is no file to keep
        if not isinstance(first, Block):
            raise SourceFailed((first and first.problem) or NOTHING)
        with Mp4Writer(path, fps, settings_of(request)) as writer:
            for part in _until_broken(first, source, problems):
                if isinstance(part, Served):
                    served = part
                    break
                writer.add(part.frames)
                running.update(part.frames.tobytes())
                frames, made, seconds = frames + len(part.frames), made + 1, time.perf_counter() - begin
                report |= part.report.as_dict()
                chunk = encoder.chunk(part.frames) if encoder else None
                yield Progress(made, request.blocks, frames, seconds, chunk, len(part.frames) / fps)
                if halted := stopped() and made < request.blocks:
                    break
    finally:
        source.close()
    report |= {"frames": frames, "fps": fps, "digest": running.hexdigest(), "seconds": round(seconds, 3)}
    report |= {name: getattr(served, name) for name in ("mode", "key", "source", "reason")} if served else {}
    if halted:
        report["stop_reason"] = "stopped"
    problem = served.problem if served else None if halted else "".join(problems) or BROKE_OFF
    yield Recording(path, seconds, report | ({"problem": problem} if problem else {}), problem)


def _until_broken(first: Block, source: Iterator[Block | Served], problems: list[str]) -> Iterator[Block | Served]:
    """All parts; a failure after the first is logged and ends them, so that what was made can be kept."""
    yield first
    try:
        yield from source
    except (GenerationError, SourceFailed) as error:  # in words for visitors already
        problems.append(str(error))
    except Exception:
        log.exception("the source of blocks broke off")
