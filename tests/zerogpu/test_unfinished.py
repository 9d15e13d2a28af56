"""On ZeroGPU too, what was made until a job was cancelled is kept; the GPU is given back at the next block."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.app.conftest import wait_for
from tests.app.test_unfinished import LONG, call_npm, cancel, is_the_beginning, refusal
from tests.zerogpu.conftest import Zero
from tests.zerogpu.test_workers import frames_of, next_one_works


def test_what_was_made_comes_back_to_its_session_only(zero: Zero, npm_client: Path, tmp_path: Path) -> None:
    client, other = zero.app.client(), zero.app.client()
    cancel(client, 2)
    path, _, report = client.predict(api_name="/last")
    zero.settled()
    assert [grant.failed for grant in zero.scheduler.grants] == [False]
    assert "no last video" in refusal(other)
    is_the_beginning(other, Path(path), report, 2)

    answer = call_npm(npm_client, zero.app, 2)
    (copy := tmp_path / answer["name"]).write_bytes(base64.b64decode(answer["bytes"]))
    is_the_beginning(other, copy, answer["report"], 2)


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_the_block_that_is_being_made_is_the_last_one(zero: Zero, sent: int) -> None:
    """The worker stands still when it has sent that many blocks, and goes on when the job is cancelled."""
    client = zero.app.client()
    zero.plan("hold", sent)
    job = client.submit(**LONG, api_name="/generate")
    wait_for("the blocks until then", lambda: zero.scheduler.workers() and len(job.outputs()) == sent)
    with ThreadPoolExecutor() as threads:
        cancelling = threads.submit(job.cancel)  # it returns when that block is made
        following = zero.client().submit("a blue star", 8, 1, api_name="/generate")
        wait_for("the app has heard it and goes on to the next", lambda: len(zero.scheduler.asked) == 2)
        asking = threads.submit(client.predict, api_name="/last")
        zero.clear()
        assert cancelling.result()
        path, seed, report = asking.result()
    assert frames_of(path) == report["frames"] == 9 + 12 * sent
    assert (seed, report["stop_reason"]) == (7, "cancelled")
    assert following.result()[2]["frames"] == 9
    zero.settled()
    assert [grant.failed for grant in zero.scheduler.grants] == [False] * 2


def test_a_worker_that_dies_leaves_its_video_as_the_last_one(zero: Zero) -> None:
    zero.plan("kill", 2)
    _, _, report = zero.client().predict("a red circle", 7, 3, api_name="/generate")
    _, _, same = zero.client().predict(api_name="/last")
    assert same == report
    zero.plan("kill", 0)
    with pytest.raises(Exception, match="GPU task was ended"):
        zero.client().predict("a red circle", 7, 3, api_name="/generate")
    assert "before its first block" in refusal(zero.client())
    next_one_works(zero)
