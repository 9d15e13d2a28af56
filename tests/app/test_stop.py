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

from tests.app.conftest import App, start_app, stop_app, wait_for
from tests.app.test_page import download, finished


def long_video(page: Page) -> None:
    """Starts the longest video the page offers and waits for its first blocks."""
    page.click("#generate")
    expect(page.locator("#status")).to_contain_text(re.compile(r"block \d+/40"), timeout=60_000)


def test_stop_keeps_what_was_made(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page("?prompt=a+red+circle&seed=5&blocks=40")
    long_video(page)
    page.click("#stop")
    line = finished(page, 20)
    assert "stopped" in line
    reader = imageio_ffmpeg.read_frames(str(download(page, tmp_path)))
    next(reader)
    frames = sum(1 for _ in reader)
    assert 9 <= frames < 477
    assert (frames - 9) % 12 == 0
    page.wait_for_function("document.querySelector('#player video').currentTime > 0.5")
    page.click("#generate")  # and the next one works
    expect(page.locator("#status")).to_contain_text(re.compile(r"block \d+/40"), timeout=20_000)
    page.click("#stop")
    finished(page, 20)


def test_stop_while_waiting_in_the_queue(open_page: Callable[..., Page]) -> None:
    first, second = open_page("?prompt=a+red+circle&blocks=40"), open_page()
    long_video(first)
    second.click("#generate")
    expect(second.locator("#stop")).to_be_visible()
    second.click("#stop")
    first.click("#stop")
    finished(first, 20)
    expect(second.locator("#status")).to_contain_text("stopped before the first block", timeout=20_000)
    expect(second.locator("#generate")).to_be_visible()


def test_closed_page_makes_room(app: App, open_page: Callable[..., Page]) -> None:
    page = open_page("?prompt=a+red+circle&blocks=40")
    long_video(page)
    page.context.close()
    wait_for("the video is given up", lambda: not list((app.folder / "tmp").glob("onegraph-video-*")), 10)
    _, _, report = app.client().predict("a red circle", 7, 1, api_name="/generate")
    assert report["frames"] == 9


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_build_ends_with_the_app(tmp_path: Path, number: signal.Signals) -> None:
    app = start_app(tmp_path / "app")
    try:
        wait_for("the build runs", lambda: len(app.family()) >= 3, 30)
        os.kill(app.process.pid, number)
        app.process.wait(10)
        wait_for("everything the app started is gone", lambda: not app.family(), 10)
    finally:
        stop_app(app)


def test_without_a_compiler_it_stays_eager_and_says_why(tmp_path: Path) -> None:
    app = start_app(tmp_path / "app", CXX="/nowhere/g++")
    try:
        wait_for("the build gives up", lambda: "build:" in app.log(), 120)
        assert "C++ compiler" in app.log()
        _, _, report = app.client().predict("a red circle", 7, 1, api_name="/generate")
        assert report["mode"] == "eager"
    finally:
        stop_app(app)
