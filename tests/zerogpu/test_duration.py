"""What the platform is asked for holds, is learned from runs, and a task that overruns it is ended and told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gradio_client.exceptions import AppError

from model.service.platform import ENDED
from tests.conftest import ROOT
from tests.fixtures.zerogpu.plans import Status
from tests.fixtures.zerogpu.scheduler import FakeScheduler
from tests.zerogpu.conftest import Zero
from tests.zerogpu.test_workers import generate, next_one_works

LENGTHS = {"128x128": (1, 2, 7, 20, 60), "96x160": (1, 7, 30, 60)}  # 60 blocks are the most that the app makes
STEPS = 1  # of which no other test makes videos
OTHERS = "a red circle", 7, 1, "128x128", 8


def test_what_is_asked_for_is_enough_and_not_twice_too_much(zero: Zero) -> None:
    """Three runs of each size, then every length, against how long the GPU was held. Estimates come from earlier runs:
    where the machine has another speed than at all of them, the bounds move along, and not otherwise."""
    for size, lengths in LENGTHS.items():
        known = [run(zero, size, 3)[2:] for _ in range(3)]
        for blocks in lengths:
            asked, held, *took = run(zero, size, blocks)
            first, later = (max(column) for column in zip(*known[-5:], strict=True))  # what the app goes by
            change = (took[0] + (blocks - 1) * took[1]) / (first + (blocks - 1) * later)
            assert held <= asked * max(1.0, change), (size, blocks, change)
            assert asked <= (2 * held + 5) / min(1.0, change), (size, blocks, change)
            known.append(took)


def run(zero: Zero, size: str, blocks: int) -> tuple[float, float, float, float]:
    """Seconds: those that were asked for, those that the GPU was held, those to the first block, and those of each
    later one (0 where there is none)."""
    job = zero.client().submit("a red circle", 7, blocks, size, STEPS, api_name="/generate")
    report = job.result()[2]
    zero.settled()
    grant, first = zero.scheduler.grants[-1], 9 / job.outputs()[0][2]["fps"]  # that block has 9 frames
    asked = round(grant.seconds / 1.5)  # without the hardware's factor
    return asked, grant.held, first, (report["seconds"] - first) / (blocks - 1) if blocks > 1 else 0.0


def test_out_of_time(zero: Zero) -> None:
    """What is asked for other settings tells: of those, nothing is learned from the runs that come in between."""
    zero.client().predict(*OTHERS, api_name="/generate")
    _, _, before = generate(zero, 1)
    usual = asked_for_others(zero)
    zero.scheduler.enforce = True
    zero.plan("hold", 1)
    _, _, report = generate(zero, 2)
    assert (report["frames"], report["problem"]) == (before["frames"], ENDED)
    assert asked_for_others(zero) > usual, "not widened when the time was not enough"
    zero.scheduler.enforce = False
    next_one_works(zero)
    assert asked_for_others(zero) == usual, "not taken back when it was"


def asked_for_others(zero: Zero) -> int:
    """The seconds that would be asked for a longer video like OTHERS; the platform refuses, so nothing is learned."""
    prompt, seed, _, *settings = OTHERS
    zero.scheduler.plan(Status(503))
    with pytest.raises(AppError):
        zero.client().predict(prompt, seed, 40, *settings, api_name="/generate")
    return int(zero.scheduler.asked[-1]["durationSeconds"])


PRICES = """
import json, sys
from datetime import timedelta
from pathlib import Path
from tests.fixtures.zerogpu import shims
shims.install(sys.argv[1], Path(sys.argv[2]))
import app
from spaces import zero
def prices():
    return app.quota_of(10), zero.client.get_duration_seconds(timedelta(seconds=10), None)
half = prices()
zero.config.get_config()["xlarge_threshold"] = -1  # what is packed is more than half a GPU holds
zero.startup()
print(json.dumps([half, prices(), zero.default_gpu_size()]))
"""


def test_a_whole_gpu_costs_twice_the_seconds(tmp_path: Path, cache: Path, built: Callable[[str], dict]) -> None:
    """Half a Blackwell is asked for with its factor, and a whole one without, but counted twice."""
    built("auto")
    with FakeScheduler() as scheduler:
        command = [sys.executable, "-c", PRICES, scheduler.url, str(tmp_path / "tensors")]
        env = {**os.environ, "HOME": str(tmp_path), "ONEGRAPH_CACHE": str(cache)}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [[15, 15.0], [20, 10], "xlarge"]
