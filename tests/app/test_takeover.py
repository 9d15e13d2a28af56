"""The app that began with an empty cache serves what it has built, by itself, and shows what that is."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.app.conftest import BUILD_SECONDS, REPO, App, settled
from tests.app.test_page import OpenPage, finished
from tests.fixtures.fake_hub import FakeHub


def test_aot_takes_over(app: App, open_page: OpenPage) -> None:
    page = open_page()
    expect(page.locator(".badge")).not_to_contain_text("compiling", timeout=1000 * BUILD_SECONDS)
    expect(page.locator(".badge")).to_have_text("AoT")
    page.locator("#panel").get_by_text("What runs", exact=True).click()
    panel = page.locator("#panel table")
    for words in ("AoT binary", "Binary from", "Key", "MB", "Loaded in", "ms"):
        expect(panel).to_contain_text(words)
    page.click("#generate")
    assert "AoT" in finished(page)
    _, _, report = app.client().predict("a red circle", 7, api_name="/generate")
    assert report["mode"] == "aot"
    assert len(report["key"]) == 64
    assert report["key"] in panel.inner_text()


def test_the_build_is_told(app: App, hub: FakeHub, open_page: OpenPage) -> None:
    """How it came to the binary, what it is keyed by, and that others can have it now."""
    now = settled(app)
    page = open_page()
    page.locator("#build").get_by_text("Build", exact=True).click()
    told = page.locator("#build")
    tip = hub.repos.get(REPO).resolve("main")
    for words in (
        f"local cache has none; Hub {REPO} has none",
        now["build"]["compiler"],
        now["build"]["sha256"],
        "trial run",
        f"published to {REPO} at {tip[:7]}",
        "environment.torch",
        now["build"]["fields"]["environment"]["torch"],
        "entry point generate",
    ):
        expect(told).to_contain_text(words)
    assert now["published"] in app.log()
    assert app.log().count("published") == 1
