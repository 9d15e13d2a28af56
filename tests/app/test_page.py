"""The page, in Chromium: up at once, plays a video while it is made, hands it out, moves from eager to AoT."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import imageio_ffmpeg
import numpy as np
from playwright.sync_api import Page, expect

from model.service.video import read_settings
from tests.app.conftest import PHONE, App

OpenPage = Callable[..., Page]
PROMPT = "a large green square moving left on a white background"

LONG = "?prompt=a+red+circle&seed=5&blocks=40&steps=8"  # longer than any test waits for

# Notes where the player is, many times a second for as long as blocks are made, from inside the page.
WATCH = """() => {
  window.moments = [];
  setInterval(() => {
    const video = document.querySelector('#player video');
    const making = /block \\d+\\/\\d+/.test(document.querySelector('#status').innerText);
    if (making && video && video.currentTime > 0) window.moments.push(video.currentTime);
  }, 25);
}"""


def start_long(page: Page) -> None:
    """On a page opened with LONG: waits until its settings are in the form, clicks, waits for the first blocks."""
    expect(page.locator("#prompt textarea")).to_have_value("a red circle")
    page.click("#generate")
    expect(page.locator("#status")).to_contain_text(re.compile(r"block \d+/\d+"))


def finished(page: Page) -> str:
    """The status line once the video is finished; to be called when it no longer shows that of an earlier one."""
    expect(page.locator("#status")).to_contain_text("seed")
    expect(page.locator("#generate")).to_be_visible()
    return page.inner_text("#status")


def download(page: Page, folder: Path) -> Path:
    with page.expect_download() as started:
        page.click("#download")
    path = folder / started.value.suggested_filename
    started.value.save_as(path)
    return path


def use_seed(page: Page, seed: int | str) -> None:
    """Opens the settings and types a seed instead of having one drawn."""
    if not page.locator("#seed").is_visible():
        page.locator("#settings").get_by_text("Settings", exact=True).click()
    page.locator("#randomise input").uncheck()
    page.locator("#seed").locator("input, textarea").fill(str(seed))


def test_page_is_up_within_15_seconds(app: App) -> None:
    assert app.started_in <= 15


def test_video_plays_while_it_is_made(open_page: OpenPage) -> None:
    page = open_page(LONG)  # more than enough to be made, however fast; stopped when the player has been seen to move
    page.evaluate(WATCH)
    start_long(page)
    page.wait_for_function("new Set(window.moments).size >= 3")
    moments = page.evaluate("window.moments")
    assert moments == sorted(moments)
    page.click("#stop")
    assert "stopped" in finished(page)


def test_video_plays_to_its_end_and_can_be_downloaded(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.append(request.url) if "127.0.0.1" not in request.url else None)
    page.locator("#prompt textarea").fill(PROMPT)
    page.click("#generate")
    line = finished(page)
    assert "5.1 s" in line
    page.wait_for_function("document.querySelector('#player video').currentTime > 4.5")

    path = download(page, tmp_path)
    settings = read_settings(path)
    assert path.name == f"onegraph-a-large-green-square-moving-left-seed{settings['seed']}.mp4"
    assert f"seed {settings['seed']}" in line
    assert settings == {**settings, "prompt": PROMPT, "blocks": 7, "size": "128x128"}
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    assert (meta["codec"], meta["source_size"], meta["fps"]) == ("h264", (128, 128), 16)
    assert sum(1 for _ in reader) == 81
    assert not [problem for problem in problems if not problem.startswith(("data:", "blob:"))]


def test_example_is_one_click(open_page: OpenPage) -> None:
    page = open_page()
    example = page.locator("#rest .gallery-item").nth(1)
    text = example.inner_text()
    example.click()
    finished(page)
    assert page.locator("#prompt textarea").input_value() == text


def test_one_screen_on_a_laptop(open_page: OpenPage) -> None:
    page = open_page()
    expect(page.locator("#player")).to_be_visible()
    page.wait_for_function("document.documentElement.scrollHeight <= innerHeight")
    for part in ("#prompt", "#generate", "#player", "#status", "#download", "#settings", "#panel"):
        box = page.locator(part).bounding_box()
        assert 0 <= box["y"] <= 768 - box["height"], part


def test_usable_on_a_phone(open_page: OpenPage) -> None:
    page = open_page(**PHONE)
    tops = []
    for part in ("#prompt", "#generate", "#player", "#status", "#download"):
        box = page.locator(part).bounding_box()
        assert 0 <= box["x"] <= 390 - box["width"], part
        assert 0 <= box["y"] <= 844 - box["height"], part
        tops.append(box["y"])
    assert tops[:4] == sorted(tops[:4])  # prompt, button, player, status, from top to bottom
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.tap("#generate")
    finished(page)


def test_settings_come_back_from_a_file_and_from_a_link(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page("?prompt=a+red+circle&seed=77&blocks=2&size=96x160&steps=2")
    expect(page.locator("#prompt textarea")).to_have_value("a red circle")
    page.locator("#settings").get_by_text("Settings", exact=True).click()
    page.click("#generate")
    line = finished(page)
    assert "seed 77" in line
    assert "1.3 s" in line
    path = download(page, tmp_path)
    assert read_settings(path) == {"prompt": "a red circle", "seed": 77, "blocks": 2, "size": "96x160", "steps": 2}

    other = open_page()
    other.locator("#settings").get_by_text("Settings", exact=True).click()
    other.locator("#rest input[type=file]").set_input_files(path)
    expect(other.locator("#prompt textarea")).to_have_value("a red circle")
    expect(other.locator("#seed").locator("input, textarea")).to_have_value("77")
    expect(other.locator("#randomise input")).not_to_be_checked()
    stranger = tmp_path / "stranger.mp4"
    stranger.write_bytes(b"not made here")
    other.locator("#rest input[type=file]").set_input_files(stranger)
    expect(other.locator(".toast-body")).to_contain_text("holds no settings")

    broken = open_page("?prompt=hello&seed=abc")
    use_seed(broken, "abc")
    broken.click("#generate")
    expect(broken.locator(".toast-body")).to_contain_text("seed")  # the server has answered: it read the address before
    expect(broken.locator("#prompt textarea")).not_to_have_value("hello")


def test_the_longest_video_is_offered_with_its_seconds(open_page: OpenPage) -> None:
    page = open_page("?prompt=a+red+circle&blocks=60")
    page.locator("#settings").get_by_text("Settings", exact=True).click()
    expect(page.get_by_text("Length: 60 blocks = 44.8 s")).to_be_visible()
    expect(page.locator("#settings input[type=range][max='60']")).to_have_value("60")


def test_two_visitors_at_once_each_get_their_own(app: App, open_page: OpenPage, tmp_path: Path) -> None:
    pages, made = [open_page(), open_page()], []
    for number, page in enumerate(pages):
        use_seed(page, 1000 + number)
        page.locator("#prompt textarea").fill(["a red circle", "a blue star"][number])
    for page in pages:
        page.click("#generate")
    for number, page in enumerate(pages):
        assert f"seed {1000 + number}" in finished(page)
        (tmp_path / str(number)).mkdir()
        path = download(page, tmp_path / str(number))
        settings = read_settings(path)
        assert (settings["seed"], settings["prompt"]) == (1000 + number, ["a red circle", "a blue star"][number])
        alone, _, _ = app.client().predict(**settings, api_name="/generate")
        made.append(pixels(path))
        assert np.abs(made[-1] - pixels(Path(alone))).mean() < 3  # not 0: the switch from eager to AoT may lie between
    assert np.abs(made[0] - made[1]).mean() > 6


def pixels(path: Path) -> np.ndarray:
    """All frames of a video, float32 [F, H, W, 3]."""
    reader = imageio_ffmpeg.read_frames(str(path))
    width, height = next(reader)["source_size"]
    return np.stack([np.frombuffer(f, np.uint8).reshape(height, width, 3) for f in reader]).astype(np.float32)
