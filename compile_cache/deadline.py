"""Work that must not take longer than it may: done in a thread, and left behind when its time is up.

Knows nothing of what the work is. A download may take longer than a question, as long as bytes arrive
fast enough for it to end in time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
TICK = 0.25  # seconds between two looks at the clock


@dataclass(frozen=True)
class Limits:
    """How long somebody waits, seconds from the beginning of the work.

    ask: for everything, unless a download has begun by then and will be done in time.
    download: for everything, the download included.
    stall: how long no byte may arrive (this one from the last byte).
    """

    ask: float = 20.0
    download: float = 120.0
    stall: float = 15.0


class Deadline:
    """The time left for one piece of work, which tells it of the bytes that arrive. For use by two threads."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._began = clock()
        self._download: tuple[float, int] | None = None  # when it began, bytes expected
        self._done = 0
        self._last = self._began

    def expect(self, total: int) -> None:
        """A download of `total` bytes begins, or begins again."""
        self._done, self._last = 0, self._clock()
        self._download = (self._last, total)

    def arrived(self, count: int) -> None:
        """`count` more bytes are here."""
        self._done += count
        self._last = self._clock()

    @property
    def progress(self) -> tuple[int, int] | None:
        """(bytes here, bytes expected) of the download, None while there is none."""
        return None if self._download is None else (self._done, self._download[1])

    def left(self) -> float:
        """Seconds left, at most until the next byte must be here; 0 or less when the time is up."""
        return self._verdict()[0]

    def why(self) -> str:
        """What there would be to say if the time were up now."""
        return self._verdict()[1]

    def check(self) -> None:
        """Raises TimeoutError with `why` when the time is up."""
        left, why = self._verdict()
        if left <= 0:
            raise TimeoutError(why)

    def _verdict(self) -> tuple[float, str]:
        now, limits = self._clock(), self._limits
        elapsed = now - self._began
        if self._download is None:
            return limits.ask - elapsed, f"no answer within {limits.ask:g} s"
        began, total = self._download
        here = f"{megabytes(self._done)} of {megabytes(total)}"
        ends = [
            (limits.download - elapsed, f"not done within {limits.download:g} s ({here})"),
            (limits.stall - (now - self._last), f"nothing arrived for {limits.stall:g} s ({here})"),
        ]
        if elapsed >= limits.ask and self._done < total:
            needed = (total - self._done) * (now - began) / self._done if self._done else float("inf")
            if elapsed + needed > limits.download:
                ends.append((0.0, f"too slow to be done within {limits.download:g} s ({here} in {elapsed:.0f} s)"))
        return min(ends)


def bounded(
    work: Callable[[], T], deadline: Deadline, tell: Callable[[int, int], None] = lambda done, total: None
) -> T:
    """The result of `work`, or what it raised; TimeoutError as soon as the deadline has passed.

    The thread is a daemon: one that hangs holds up neither the caller nor the end of the process. It may
    go on for a while, so what it does must not matter any more. tell(bytes here, bytes expected) is called
    in the caller's thread, a few times per second, while a download is under way and once at its end.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name="bounded", daemon=True).start()
    while not done.wait(max(0.0, min(TICK, deadline.left()))):
        if deadline.progress is not None:
            tell(*deadline.progress)
        deadline.check()
    if errors:
        raise errors[0]
    if deadline.progress is not None:
        tell(*deadline.progress)
    return results[0]


def megabytes(count: int) -> str:
    """A size for people."""
    return f"{count / 2**20:.1f} MB" if count >= 2**20 else f"{count / 2**10:.1f} KB"
