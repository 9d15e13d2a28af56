"""Whatever the platform answers to a request for a GPU, a program reads what to do, and the next request works."""

from __future__ import annotations

from pathlib import Path

import pytest
from gradio_client.exceptions import AppError

from model.platform import BUSY, ENDED, LOST, NO_ACCOUNT, PENDING, RUNS, SESSION
from tests.app.test_clients import call_npm
from tests.fixtures.zerogpu.plans import FREE, PRO, Plan, Quota, Status, Wait
from tests.zerogpu.conftest import Zero

HOUR = 3600
REFUSED = {
    "no token": ([Quota(0, HOUR)], None, [NO_ACCOUNT]),
    "anonymous, some left": ([Quota(2, HOUR)], "ada", ["2 s are left", "shorter", "sign in", "try again in 1 h."]),
    "anonymous, none left": ([Quota(0, 90)], "ada", ["used up", "sign in", "try again in 1 min 30 s."]),
    "free, some left": ([Quota(2, HOUR, FREE)], "ada", ["2 s are left", "shorter", "PRO", "try again in 1 h."]),
    "free, none left": ([Quota(0, HOUR, FREE)], "ada", ["used up", "PRO", "try again in 1 h."]),
    "PRO, some left": ([Quota(2, HOUR, PRO)], "ada", ["2 s are left", "shorter", "add credits", "try again in 1 h."]),
    "PRO, none left": ([Quota(0, HOUR, PRO)], "ada", ["used up", "add credits", "try again in 1 h."]),
    "too many runs": ([Quota(60, 0)], "ada", [RUNS]),
    "credits pending": ([Quota(0, 0, {"X-Approve-Result": "pending-overquota-exceeded"})], "ada", [PENDING]),
    "illegal duration": ([Quota(60, -1)], "ada", ["more than is allowed at once", "shorter"]),
    "illegal duration without a token": ([Quota(60, -1)], None, ["more than is allowed at once", "shorter"]),
    "queue time-out": ([Wait("failed")], "ada", [BUSY]),
    "queue time-out without a token": ([Wait("failed")], None, [BUSY]),
    "stream ends early": ([Wait("eof")], "ada", [LOST]),
    "stream dropped twice": ([Wait("drop"), Wait("drop")], "ada", [LOST]),
    "no GPU": ([Status(503)], "ada", [BUSY]),
    "session expired": ([Status(401)], "ada", [SESSION]),
    "not found": ([Status(404)], "ada", ["status 404", "try again in a minute"]),
    "internal error": ([Status(500)], "ada", ["status 500", "try again in a minute"]),
}
SERVED = {
    "waits in the queue": [Wait("succeeded")],
    "stream dropped once": [Wait("drop")],
    "stream dropped once, then waits": [Wait("drop"), Wait("succeeded", pings=1)],
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_says_what_to_do(zero: Zero, case: str) -> None:
    plans, user, expected = REFUSED[case]
    zero.scheduler.plan(*plans)
    client = zero.client(user)
    with pytest.raises(AppError) as caught:
        client.predict("a red circle", 7, 1, api_name="/generate")
    message = str(caught.value)
    assert [words for words in expected if words not in message] == []
    assert not any(sign in message for sign in ("Traceback", "RuntimeError", "ZeroGPU", ".py"))
    assert zero.scheduler.grants == []
    assert client.predict("a red circle", 7, 1, api_name="/generate")[2]["frames"] == 9


@pytest.mark.parametrize("case", SERVED)
def test_a_queue_is_no_failure(zero: Zero, case: str) -> None:
    plans: list[Plan] = SERVED[case]
    zero.scheduler.plan(*plans)
    _, _, report = zero.client("ada").predict("a red circle", 7, 1, api_name="/generate")
    assert report["frames"] == 9
    assert "problem" not in report


def test_the_npm_client_reads_it_too(zero: Zero, npm_client: Path) -> None:
    zero.scheduler.plan(Status(503))
    assert BUSY in call_npm(npm_client, zero.app, prompt="a red circle", blocks=1)["error"]
    zero.plan("kill", 1)
    answer = call_npm(npm_client, zero.app, prompt="a red circle", blocks=2)
    assert answer["report"]["problem"] == ENDED
    assert answer["report"]["frames"] == 9
