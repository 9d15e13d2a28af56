"""What the platform is asked for holds, is learned from runs, and a task that overruns it is ended and told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from model.platform import ENDED
from tests.conftest import ROOT
from tests.fixtures.zerogpu.scheduler import FakeScheduler
from tests.zerogpu.conftest import Zero
from tests.zerogpu.test_workers import generate, next_one_works

LENGTHS = {"128x128": (1, 2, 7, 20, 60), "96x160": (1, 7, 30, 60)}  # 60 blocks are the most that the app makes
STEPS = 1  # of which no other test makes videos


def test_what_is_asked_for_is_enough_and_not_twice_too_much(zero: Zero) -> None:
    """Three runs of each size, then every length, against how long the GPU was held. Estimates come from earlier runs:
    where the machine has another speed than at any of them, the bounds move along, and not otherwise."""
    for size, lengths in LENGTHS.items():
        paces = [run(zero, size, 3)[2] for _ in range(3)]  # of them, as of the app's own, the last five count
        for blocks in lengths:
            asked, held, pace = run(zero, size, blocks)
            slower, faster = (max(1.0, ratio) for ratio in (pace / max(paces[-5:]), max(paces[-5:]) / pace))
            assert held <= asked * slower, (size, blocks)
            assert asked <= (2 * held + 5) * faster, (size, blocks)
            paces.append(pace)


def run(zero: Zero, size: str, blocks: int) -> tuple[float, float, float]:
    """The seconds that were asked for, those that the GPU was held, and those of each block."""
    report = zero.client().predict("a red circle", 7, blocks, size, STEPS, api_name="/generate")[2]
    zero.settled()
    grant = zero.scheduler.grants[-1]
    return round(grant.seconds / 1.5), grant.held, report["seconds"] / blocks  # without the hardware's factor


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
