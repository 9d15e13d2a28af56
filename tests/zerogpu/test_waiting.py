"""Who waits in the platform's queue for a GPU can leave it at once, and no GPU is lent for nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.app.conftest import visit, wait_for
from tests.app.test_page import finished
from tests.app.test_unfinished import LONG, refusal
from tests.fixtures.zerogpu.plans import Wait
from tests.zerogpu.conftest import Zero
from tests.zerogpu.test_workers import next_one_works

ENDLESS = 10**6  # pings
SHORT = "?prompt=a+red+circle&seed=5&blocks=1"


@pytest.fixture
def granting() -> Iterator[Event]:
    """Set when the platform has a GPU; at the latest at the end. Without pings, nobody can leave the queue before."""
    event = Event()
    yield event
    event.set()


@pytest.fixture
def page(running: Zero, browser: Browser) -> Iterator[Page]:
    page = visit(browser, running.app.url + SHORT)
    expect(page.locator("#prompt textarea")).to_have_value("a red circle")
    yield page
    page.context.close()


def stop(page: Page) -> None:
    page.click("#stop")
    expect(page.locator("#status")).to_contain_text("stopped before the first block")
    expect(page.locator("#generate")).to_be_visible()


def close(page: Page) -> None:
    page.context.close()


def waits_in_the_queue(zero: Zero) -> None:
    wait_for("it waits for a GPU", lambda: zero.scheduler.waiting)


def left_the_queue(zero: Zero) -> None:
    wait_for("it left the queue", lambda: not zero.scheduler.waiting)


@pytest.mark.parametrize("end", [stop, close])
def test_who_leaves_while_waiting_is_not_lent_a_gpu(zero: Zero, page: Page, end: Callable[[Page], None]) -> None:
    zero.scheduler.plan(Wait(pings=ENDLESS))
    page.click("#generate")
    waits_in_the_queue(zero)
    end(page)
    left_the_queue(zero)
    assert zero.scheduler.grants == []
    next_one_works(zero)


def test_a_gpu_that_comes_after_stop_goes_back_unused(zero: Zero, page: Page, granting: Event) -> None:
    zero.scheduler.plan(Wait(pings=0, until=granting))
    zero.plan("hold", 0)  # a worker that began would keep it
    page.click("#generate")
    waits_in_the_queue(zero)
    stop(page)
    assert zero.scheduler.grants == []
    granting.set()
    wait_for("it is lent a GPU", lambda: zero.scheduler.grants)
    zero.settled()
    zero.clear()
    page.click("#generate")
    assert "0.6 s" in finished(page)
    zero.settled()
    assert [grant.failed for grant in zero.scheduler.grants] == [False] * 2


def test_a_job_that_is_cancelled_while_waiting_leaves_no_video(zero: Zero, granting: Event) -> None:
    client = zero.app.client()
    zero.scheduler.plan(Wait(pings=0, until=granting))
    job = client.submit(**LONG, api_name="/generate")
    waits_in_the_queue(zero)
    assert job.cancel()
    assert "before its first block" in refusal(client)
    next_one_works(zero)  # nobody stands in its way
    granting.set()
    left_the_queue(zero)
    zero.settled()
    assert len(zero.scheduler.grants) == 2
