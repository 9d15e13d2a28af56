"""Whatever the platform answers to a request for a GPU, and however a worker ends: programs in Python and JavaScript
and whoever looks at the page read the same words, which say what to do, and the next request works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from model.service.platform import BUSY, LOST, NO_ACCOUNT, PENDING, RUNS, SESSION
from model.service.recording import NOTHING
from tests.fixtures.zerogpu.plans import FREE, PRO, Plan, Quota, Status, Wait
from tests.zerogpu.conftest import Zero, token
from tests.zerogpu.test_workers import ENDS
from tests.zerogpu.visitors import BLOCKS, Answer, Ask, all_kinds

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
WHOLE = Answer(None, 9 + 12 * (BLOCKS - 1))
SERVED = {
    "waits in the queue": [Wait("succeeded")],
    "stream dropped once": [Wait("drop")],
    "stream dropped once, then waits": [Wait("drop"), Wait("succeeded", pings=1)],
}


@pytest.fixture(scope="module")
def visitors(
    running: Zero, browser: Browser, npm_client: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Ask]]:
    with all_kinds(running, browser, npm_client, tmp_path_factory.mktemp("visitors")) as asks:
        yield asks


def same_words(answers: dict[str, Answer]) -> Answer:
    """What all of them read and have."""
    assert len(set(answers.values())) == 1, answers
    return answers["Python"]


def next_one_works(visitors: dict[str, Ask]) -> None:
    assert visitors["page"](None) == WHOLE


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_says_what_to_do(zero: Zero, visitors: dict[str, Ask], case: str) -> None:
    plans, user, expected = REFUSED[case]
    answers = {}
    for name, ask in visitors.items():
        zero.scheduler.plan(*plans)
        answers[name] = ask(user)
    told = same_words(answers)
    assert told.frames == 0
    assert [words for words in expected if words not in told.words] == []
    assert not any(sign in told.words for sign in ("Traceback", "RuntimeError", "ZeroGPU", ".py"))
    assert {asked.get("token") for asked in zero.scheduler.asked} == {user and token(user)}
    assert zero.scheduler.grants == []
    next_one_works(visitors)


@pytest.mark.parametrize("case", SERVED)
def test_a_queue_is_no_failure(zero: Zero, case: str) -> None:
    plans: list[Plan] = SERVED[case]
    zero.scheduler.plan(*plans)
    _, _, report = zero.client("ada").predict("a red circle", 7, 1, api_name="/generate")
    assert report["frames"] == 9
    assert "problem" not in report


@pytest.mark.parametrize(("kind", "after"), [("kill", 0), ("exit", 0), *((kind, 1) for kind in ENDS)])
def test_a_worker_that_ends_is_told_of(zero: Zero, visitors: dict[str, Ask], kind: str, after: int) -> None:
    """Before its first block it is an error; after it the problem is told beside what was made until then."""
    answers = {}
    for name, ask in visitors.items():
        zero.plan(kind, after)
        answers[name] = ask(None)
        zero.clear()
    told = same_words(answers)
    assert (NOTHING if (kind, after) == ("exit", 0) else ENDS[kind]) in told.words
    assert told.frames == 9 * after
    next_one_works(visitors)


def test_where_nothing_fails_all_have_the_video_and_read_nothing(zero: Zero, visitors: dict[str, Ask]) -> None:
    assert same_words({name: ask("ada") for name, ask in visitors.items()}) == WHOLE
