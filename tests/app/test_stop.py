"""What ends early: a video its visitor stops, a page that is closed, and the app itself."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import imageio_ffmpeg
import pytest
from playwright.sync_api import Page, expect

from tests.app.conftest import PATIENCE, App, start_app, stop_app, wait_for
from tests.app.test_page import LONG, download, finished, start_long


def test_stop_keeps_what_was_made(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(LONG)
    start_long(page)
    page.click("#stop")
    line = finished(page)
    assert "stopped" in line
    reader = imageio_ffmpeg.read_frames(str(download(page, tmp_path)))
    next(reader)
    frames = sum(1 for _ in reader)
    assert 9 <= frames < 477
    assert (frames - 9) % 12 == 0
    page.wait_for_function("document.querySelector('#player video').currentTime > 0.25")
    start_long(page)  # and the next one works
    page.click("#stop")
    finished(page)


def test_stop_while_waiting_in_the_queue(open_page: Callable[..., Page]) -> None:
    first, second = open_page(LONG), open_page()
    start_long(first)
    second.click("#generate")
    expect(second.locator("#stop")).to_be_visible()
    second.click("#stop")
    expect(second.locator("#stop")).to_have_text("Stopping …")  # the server knows, before it is the second one's turn
    first.click("#stop")
    assert "stopped" in finished(first)
    expect(second.locator("#status")).to_contain_text("stopped before the first block")
    expect(second.locator("#generate")).to_be_visible()


def test_closed_page_makes_room(app: App, open_page: Callable[..., Page]) -> None:
    page = open_page(LONG.replace("=40", "=60"))  # the rest is to take long beside what noticing takes
    start_long(page)
    expect(page.locator("#status")).to_contain_text(re.compile(r"block ([5-9]|\d\d)/60"))  # the speed has settled
    made, speed = map(int, re.search(r"block (\d+)/60, (\d+) fps", page.inner_text("#status")).groups())
    rest = 12 * (60 - made) / max(speed, 1)  # seconds that it would take to its end
    page.context.close()
    wait_for("the video is given up", lambda: not list((app.folder / "tmp").glob("onegraph-video-*")), rest / 2)
    _, _, report = app.client().predict("a red circle", 7, 1, api_name="/generate")
    assert report["frames"] == 9


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_build_ends_with_the_app(tmp_path: Path, number: signal.Signals) -> None:
    app = start_app(tmp_path / "app")
    try:
        wait_for("the build runs", lambda: len(app.family()) >= 3)
        os.kill(app.process.pid, number)
        app.process.wait(PATIENCE)
        wait_for("everything the app started is gone", lambda: not app.family())
    finally:
        stop_app(app)
