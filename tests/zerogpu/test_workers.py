"""However a worker ends, the visitor gets what was made until then and reads what to do, and the next request works."""

from __future__ import annotations

import random
from threading import Thread
from typing import Any

import imageio_ffmpeg
import pytest
from gradio_client.exceptions import AppError

from model.service.platform import ENDED, MEMORY
from model.service.recording import BROKE_OFF, NOTHING
from tests.app.conftest import wait_for
from tests.zerogpu.conftest import Zero

BLOCKS = 4
ENDS = {
    "kill": ENDED,
    "exit": BROKE_OFF,
    "raise": "The GPU worker failed (ZeroDivisionError). Please try again",
    "memory": MEMORY,
    "unpicklable": "The GPU worker failed (PicklingError). Please try again",
}


def frames_of(path: str) -> int:
    reader = imageio_ffmpeg.read_frames(path)
    next(reader)
    return sum(1 for _ in reader)


def generate(zero: Zero, blocks: int = BLOCKS) -> tuple[str, int, dict[str, Any]]:
    return zero.client().predict("a red circle", 7, blocks, api_name="/generate")


def next_one_works(zero: Zero) -> None:
    zero.clear()
    _, _, report = generate(zero, 1)
    assert report["frames"] == 9
    assert "problem" not in report
    zero.settled()


@pytest.mark.parametrize(
    ("kind", "after"), [(kind, 3) for kind in ENDS] + [("kill", 1), ("kill", BLOCKS), ("exit", BLOCKS)]
)
def test_what_was_made_is_kept(zero: Zero, kind: str, after: int) -> None:
    zero.plan(kind, after)
    path, seed, report = generate(zero)
    assert ENDS[kind] in report["problem"]
    assert seed == 7
    assert frames_of(path) == report["frames"] == 9 + 12 * (after - 1)
    next_one_works(zero)


@pytest.mark.parametrize("kind", ENDS)
def test_an_end_before_the_first_block_is_an_error(zero: Zero, kind: str) -> None:
    zero.plan(kind, 0)
    with pytest.raises(AppError) as caught:
        generate(zero)
    assert (NOTHING if kind == "exit" else ENDS[kind]) in str(caught.value)
    next_one_works(zero)


@pytest.mark.parametrize("after", [1, 3])
def test_cancelling_ends_the_task_and_keeps_the_worker(zero: Zero, after: int) -> None:
    job = zero.client().submit("a red circle", 7, 60, "128x128", 8, api_name="/generate")  # the slowest there is
    wait_for("the first blocks", lambda: len(job.outputs()) >= after)
    assert job.cancel()
    zero.settled()
    assert len(job.outputs()) < 60
    (grant,) = zero.scheduler.grants
    assert not grant.failed
    next_one_works(zero)
    assert zero.scheduler.workers() == [grant.pid, grant.pid]


def test_cancelling_at_each_block(zero: Zero) -> None:
    """The worker stands still when it has sent that block, and goes on while the visitor cancels."""
    for after in range(1, BLOCKS + 1):
        zero.plan("hold", after)
        job = zero.client().submit("a red circle", 7, after + 20, api_name="/generate")
        wait_for("the blocks until then", lambda job=job, after=after: len(job.outputs()) == after)
        cancelling = Thread(target=job.cancel)  # it returns when the worker has made the block that it is at
        cancelling.start()
        zero.clear()
        cancelling.join()
        zero.settled()
        assert all(part[0] is None for part in job.outputs()), "the video was made to its end"
    assert [grant.failed for grant in zero.scheduler.grants] == [False] * BLOCKS
    next_one_works(zero)
    assert len(set(zero.scheduler.workers())) == 1


def test_a_grant_that_cannot_be_given_back_costs_no_video(zero: Zero) -> None:
    zero.scheduler.release_status = 500
    _, _, report = generate(zero)
    assert (report["frames"], "problem" in report) == (9 + 12 * (BLOCKS - 1), False)
    zero.scheduler.release_status = 200
    next_one_works(zero)


def test_thirty_requests_of_which_a_third_fails_leave_nothing_behind(zero: Zero) -> None:
    draw = random.Random(1)
    failing = set(draw.sample(range(30), 10))
    for index in range(30):
        zero.clear()
        if index in failing:
            zero.plan(draw.choice(list(ENDS)), draw.choice([1, 2]))
        _, _, report = generate(zero, 2)
        assert ("problem" in report) == (index in failing)
    zero.settled()
    assert len(zero.scheduler.grants) == 30
    living = set(zero.app.family()) - {zero.app.process.pid}
    # Requests of other tests overlapped, and had another GPU.
    assert living == zero.scheduler.holders(), "one worker for each GPU is kept warm, all others are gone"
    left = [path.name for path in (zero.app.folder / "tmp").iterdir()]
    assert [name for name in left if "onegraph" in name or "aotinductor" in name] == []
