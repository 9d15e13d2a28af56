"""The page on ZeroGPU: the price before the click, refusals and broken videos in words, and what was made is kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.app.conftest import visit
from tests.app.test_page import LONG, download, finished, start_long
from tests.zerogpu.conftest import Zero
from tests.zerogpu.test_workers import frames_of

SHORT = "?prompt=a+red+circle&seed=5&blocks=4"


@pytest.fixture
def open_page(running: Zero, browser: Browser) -> Iterator[Callable[..., Page]]:
    yield lambda path="": visit(browser, running.app.url + path)
    for context in browser.contexts:
        context.close()


def price(page: Page) -> int:
    expect(page.locator("#cost")).to_contain_text("GPU quota")
    return int(re.search(r"about (\d+) s", page.inner_text("#cost"))[1])


def test_the_price_is_what_the_platform_is_asked_for(zero: Zero, open_page: Callable[..., Page]) -> None:
    page = open_page()
    shown = price(page)
    page.click("#generate")
    finished(page)
    assert [int(asked["durationSeconds"]) for asked in zero.scheduler.asked] == [shown]


def test_stop_gives_the_gpu_back_and_keeps_the_video(
    zero: Zero, open_page: Callable[..., Page], tmp_path: Path
) -> None:
    page = open_page(LONG)
    start_long(page)
    page.click("#stop")
    assert "stopped" in finished(page)
    assert 9 <= frames_of(str(download(page, tmp_path))) < 477
    zero.settled()
    assert [grant.failed for grant in zero.scheduler.grants] == [False]


def test_stop_in_each_block_keeps_what_was_made(zero: Zero, open_page: Callable[..., Page], tmp_path: Path) -> None:
    """The worker stands still before the block, and goes on when Stop was heard: that block is the last."""
    page = open_page("?prompt=a+red+circle&seed=5&blocks=3")
    expect(page.locator("#prompt textarea")).to_have_value("a red circle")
    for last in (1, 2, 3):
        zero.plan("hold", last - 1)
        page.click("#generate")
        expect(page.locator("#status")).to_contain_text("starting" if last == 1 else f"block {last - 1}/3")
        page.click("#stop")
        expect(page.locator("#stop")).to_have_text("Stopping …")
        zero.clear()
        assert ("stopped" in finished(page)) == (last < 3)
        zero.settled()
        (folder := tmp_path / str(last)).mkdir()
        assert frames_of(str(download(page, folder))) == 9 + 12 * (last - 1)
    assert [grant.failed for grant in zero.scheduler.grants] == [False] * 3
    assert len(set(zero.scheduler.workers())) == 1


def test_a_closed_page_gives_the_gpu_back(zero: Zero, open_page: Callable[..., Page]) -> None:
    page = open_page(LONG)
    start_long(page)
    (grant,) = zero.scheduler.grants
    page.context.close()
    zero.settled()
    assert not grant.failed
    _, _, report = zero.client().predict("a red circle", 7, 1, api_name="/generate")
    assert report["frames"] == 9
    assert zero.scheduler.workers() == [grant.pid, grant.pid]
