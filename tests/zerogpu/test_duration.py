"""What the platform is asked for holds, is learned from runs, and a task that overruns it is ended and told."""

from __future__ import annotations

from model.platform import ENDED
from tests.zerogpu.conftest import Zero
from tests.zerogpu.test_workers import generate, next_one_works


def test_estimates_follow_the_measured_speed(zero: Zero) -> None:
    rates = [generate(zero, 7)[2]["seconds"] / 7 for _ in range(6)]  # of them the last five are remembered
    for blocks in (1, 20):
        rates.append(generate(zero, blocks)[2]["seconds"] / blocks)
        asked = zero.scheduler.grants[-1].seconds / 1.5 + 0.5  # without the hardware's factor; it was rounded
        assert blocks * min(rates) <= asked <= 2 * blocks * max(rates) + 5.5


def test_out_of_time(zero: Zero) -> None:
    before = generate(zero, 1)
    zero.scheduler.enforce = True
    zero.plan("hold", 1)
    _, _, report = generate(zero, 2)
    assert (report["frames"], report["problem"]) == (before[2]["frames"], ENDED)
    zero.scheduler.enforce = False
    was = zero.scheduler.grants[-1].seconds
    zero.clear()
    generate(zero, 20)
    widened = zero.scheduler.grants[-1].seconds
    generate(zero, 20)
    assert widened > zero.scheduler.grants[-1].seconds, f"not widened after {was} s were not enough"
    next_one_works(zero)
