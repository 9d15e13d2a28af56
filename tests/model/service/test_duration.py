"""Estimates hold for all lengths and both sizes after three runs, follow the machine, and stay within bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model.pipeline import Request
from model.service.duration import Durations
from model.service.recording import Served

BASE = Request("a", blocks=7, height=128, width=128, steps=4)
WIDE = replace(BASE, height=96, width=160)
START = 1.0  # that the machine took before our first line


def fresh(**bounds: int) -> Durations:
    return Durations(128, 128, 4, **bounds)


def run(durations: Durations, request: Request, speed: float, mode: str = "aot", first: float = 0.1) -> float:
    """A run at that many seconds a block; returns how long it held the machine."""
    seconds = first + request.blocks * speed
    durations.learn(request, Served(mode, seconds=seconds, first_seconds=first + speed), request.blocks)
    return START + seconds


@pytest.mark.parametrize("speed", [0.1, 0.3, 2.0])
@pytest.mark.parametrize("lengths", [(7, 7, 7), (1, 1, 1), (1, 7, 40)])
def test_enough_and_not_twice_too_much_after_three_runs(speed: float, lengths: tuple[int, ...]) -> None:
    durations = fresh()
    for request in (BASE, WIDE):
        for blocks in lengths:
            run(durations, replace(request, blocks=blocks), speed)
        for blocks in range(1, 61):
            actual = START + 0.1 + blocks * speed
            assert actual <= durations.estimate(replace(request, blocks=blocks), "aot") <= 2 * actual + 5


def test_unknown_settings_are_scaled_from_known_ones_with_more_margin() -> None:
    durations = fresh()
    run(durations, BASE, 1.0, first=0.0)
    known = durations.estimate(BASE, "aot")
    twice = durations.estimate(replace(BASE, steps=9), "aot")  # twice the runs of the transformer
    assert 2 * known < twice < 4 * known


def test_modes_are_learned_apart() -> None:
    durations = fresh()
    before = durations.estimate(BASE, "aot")
    run(durations, BASE, 5.0, mode="eager")
    assert durations.estimate(BASE, "aot") == before
    assert durations.estimate(BASE, "eager") > 35


def test_the_slowest_of_the_last_runs_counts_and_is_forgotten() -> None:
    durations = fresh()
    run(durations, BASE, 3.0)
    slow = durations.estimate(BASE, "aot")
    run(durations, BASE, 0.5)
    assert durations.estimate(BASE, "aot") == slow
    for _ in range(5):
        run(durations, BASE, 0.5)
    assert durations.estimate(BASE, "aot") < slow / 2


def test_running_out_of_time_widens_until_a_run_is_finished() -> None:
    durations = fresh()
    before = durations.estimate(BASE, "aot")
    durations.ran_out("aot")
    assert durations.estimate(BASE, "aot") > 1.3 * before
    for _ in range(20):
        durations.ran_out("aot")
    assert durations.estimate(BASE, "aot") < 5 * before
    run(durations, BASE, 0.3)
    assert durations.estimate(BASE, "aot") < before


@pytest.mark.parametrize(("speed", "expected"), [(0.0, 5), (1e9, 120)])
def test_bounds(speed: float, expected: int) -> None:
    durations = fresh(low=5, high=120)
    run(durations, BASE, speed, first=0.0)
    assert durations.estimate(BASE, "aot") == expected
