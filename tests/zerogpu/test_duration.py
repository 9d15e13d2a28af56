"""What the platform is asked for holds, is learned from runs, and a task that overruns it is ended and told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from model.platform import ENDED
from tests.conftest import ROOT
from tests.fixtures.zerogpu.scheduler import FakeScheduler
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


def test_a_whole_gpu_costs_twice_the_seconds(tmp_path: Path) -> None:
    """Half a Blackwell is asked for with its factor, and a whole one without, but counted twice."""
    with FakeScheduler() as scheduler:
        command = [sys.executable, "-c", PRICES, scheduler.url, str(tmp_path / "tensors")]
        env = {**os.environ, "HOME": str(tmp_path), "ONEGRAPH_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [[15, 15.0], [20, 10], "xlarge"]
