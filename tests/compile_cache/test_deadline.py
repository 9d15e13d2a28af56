"""Deadlines: what may go on and what may not, on a clock of their own; and work that hangs."""

from __future__ import annotations

import threading

import pytest

from compile_cache.deadline import Deadline, Limits, bounded, megabytes
from compile_cache.hub import LIMITS


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def deadline(clock) -> Deadline:
    return Deadline(Limits(), clock)


def test_the_defaults():
    assert LIMITS == Limits() == Limits(ask=20.0, download=120.0, stall=15.0)


def test_a_question_ends_with_its_time(deadline, clock):
    clock.now += 19.9
    deadline.check()
    clock.now += 0.1
    with pytest.raises(TimeoutError, match="no answer within 20 s"):
        deadline.check()


def downloading(deadline, clock, seconds: float, chunk: int, every: float = 1.0) -> float:
    """Lets `chunk` bytes arrive `every` so many seconds until the deadline passes; how long that took."""
    began = clock.now
    while clock.now - began < seconds:
        clock.now += every
        if deadline.left() <= 0:
            break
        deadline.arrived(chunk)
    return clock.now - began


def test_a_download_may_go_on_while_it_will_be_done_in_time(deadline, clock):
    deadline.expect(100 * 2**20)
    assert downloading(deadline, clock, 99, 2**20) == 99
    assert deadline.left() > 0
    assert deadline.progress == (99 * 2**20, 100 * 2**20)


@pytest.mark.parametrize(
    ("chunk", "every", "seconds", "reason"),
    [
        (2**20, 15.5, 15.5, r"nothing arrived for 15 s \(0.0 KB of 100.0 MB\)"),
        (100, 1.0, 20.0, r"too slow to be done within 120 s \(1.9 KB of 100.0 MB in 20 s\)"),
    ],
)
def test_a_download_ends_at_once(deadline, clock, chunk, every, seconds, reason):
    deadline.expect(100 * 2**20)
    assert downloading(deadline, clock, 200, chunk, every) == seconds
    with pytest.raises(TimeoutError, match=reason):
        deadline.check()


def test_a_download_that_becomes_slow_ends_in_time_too(deadline, clock):
    deadline.expect(100 * 2**20)
    assert downloading(deadline, clock, 100, 2**20 - 50_000) == 100
    assert downloading(deadline, clock, 200, 1) <= 20
    with pytest.raises(TimeoutError, match=r"too slow.* \(95.* of 100.0 MB"):
        deadline.check()


def test_a_download_that_begins_again(deadline, clock):
    deadline.expect(10)
    deadline.arrived(7)
    clock.now += 5
    deadline.expect(10)
    assert deadline.progress == (0, 10)
    clock.now += 14
    deadline.check()


def test_bounded_gives_the_result_and_the_error():
    told = []
    deadline = Deadline(Limits())

    def work() -> str:
        deadline.expect(4)
        deadline.arrived(4)
        return "done"

    assert bounded(work, deadline, lambda done, total: told.append((done, total))) == "done"
    assert told[-1] == (4, 4)
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 / 0, Deadline(Limits()))


def test_work_that_hangs_is_left_behind():
    release, ended = threading.Event(), threading.Event()

    def hang() -> None:
        release.wait()
        ended.set()

    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        bounded(hang, Deadline(Limits(ask=0.05)))
    [thread] = [item for item in threading.enumerate() if item.name == "bounded"]
    assert thread.daemon
    release.set()
    assert ended.wait(10)


def test_sizes():
    assert [megabytes(n) for n in (0, 1536, 3 * 2**20)] == ["0.0 KB", "1.5 KB", "3.0 MB"]
