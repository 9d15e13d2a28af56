"""How many seconds of a machine a request will need: learned from finished runs, with a margin, within bounds.

A platform that lends a machine for a stated time ends what takes longer, and charges what was stated. Knows requests
and times; not who lends, nor what is charged.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict, deque
from collections.abc import Iterable

from ..pipeline import Request
from .recording import Served

START = 2.0  # seconds from the grant to the first line of ours: a fork, and weights brought to the device
MARGIN = 1.3
UNKNOWN = 1.5  # on top, for settings of which no run is known: scaled from others
KEPT = 5  # runs of one kind; the slowest of them counts
WIDER = 1.5  # the step by which a task that ran out of time widens all estimates of its mode
WIDEST = 4.0

Kind = tuple[str, int, int, int]  # mode, height, width, steps
Speed = tuple[float, float | None]  # seconds to the first block; of every later one, if there was one


class Durations:
    """Estimates for one model. Thread-safe."""

    def __init__(self, height: int, width: int, steps: int, *, prior: float = 1.0, low: int = 5, high: int = 600):
        """prior: seconds that a block of that size and those steps takes, as long as nothing is known.
        low, high: what an estimate may be, in seconds."""
        self._prior = prior / _work(height, width, steps)
        self._low, self._high = low, high
        self._runs: defaultdict[Kind, deque[Speed]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._wider: defaultdict[str, float] = defaultdict(lambda: 1.0)
        self._lock = threading.Lock()

    def estimate(self, request: Request, mode: str) -> int:
        """Whole seconds, the machine's start included."""
        with self._lock:
            first, later = self._speed(_kind(request, mode))
            seconds = START + MARGIN * self._wider[mode] * (first + (request.blocks - 1) * later)
        return min(max(math.ceil(seconds), self._low), self._high)

    def learn(self, request: Request, served: Served, blocks: int) -> None:
        """A run has ended that made that many blocks, from one up."""
        later = (served.seconds - served.first_seconds) / (blocks - 1) if blocks > 1 else None
        with self._lock:
            self._runs[_kind(request, served.mode)].append((served.first_seconds, later))
            self._wider[served.mode] = 1.0

    def ran_out(self, mode: str) -> None:
        """A task was ended before it was done: without this, one that never has the time would never be learned of."""
        with self._lock:
            self._wider[mode] = min(self._wider[mode] * WIDER, WIDEST)

    def _speed(self, kind: Kind) -> tuple[float, float]:
        if runs := self._runs.get(kind):
            return _slowest(runs)
        work = _work(*kind[1:])
        alike = {other: _slowest(runs) for other, runs in self._runs.items() if other[0] == kind[0]}
        if not alike:
            return work * self._prior, work * self._prior
        scaled = [[seconds / _work(*other[1:]) for seconds in speed] for other, speed in alike.items()]
        first, later = (UNKNOWN * work * max(column) for column in zip(*scaled, strict=True))
        return first, later


def _slowest(runs: Iterable[Speed]) -> tuple[float, float]:
    first = max(first for first, _ in runs)
    return first, max((later for _, later in runs if later is not None), default=first)


def _kind(request: Request, mode: str) -> Kind:
    return mode, request.height, request.width, request.steps


def _work(height: int, width: int, steps: int) -> float:
    return height * width * (steps + 1)  # the last run of the transformer commits the block
