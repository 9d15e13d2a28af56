"""What the page says of the binary, to a visitor: why there is none, and that videos are made all the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from compile_cache.store import LocalStore
from tests.app.conftest import start_app, stop_app, visit
from tests.app.test_page import finished
from tests.fixtures.damage import DAMAGE, plant


def panel(page: Page) -> dict[str, str]:
    """The table "What runs", opened by a click: row name -> text."""
    page.locator("#panel").get_by_text("What runs", exact=True).click()
    expect(page.locator("#panel table")).to_be_visible()
    rows = page.locator("#panel tr").all()
    return {row.locator("th").inner_text(): row.locator("td").inner_text() for row in rows}


@pytest.mark.parametrize("kind", [None, "a member outside"], ids=["empty store", "damaged binary"])
def test_why_eager_serves(
    cache: Path, built: Callable[[str], dict], browser: Browser, tmp_path: Path, kind: str | None
) -> None:
    """A machine without a C++ compiler, so that the reason stays: with nothing in its store, and with a bad binary."""
    store, programs = tmp_path / "store", tmp_path / "programs"
    programs.mkdir()
    without = {"PATH": str(programs), "CXX": ""}
    if kind:
        plant(cache, built("auto")["key"], store, kind)
        without["CXX"] = str(programs / "g++")  # named by the owner, and not there
    app = start_app(tmp_path / "app", ONEGRAPH_CACHE=str(store), **without)
    try:
        page = visit(browser, app.url)
        expect(page.locator(".badge")).to_have_text("eager")  # by itself, when the build gave up
        said = panel(page)
        assert list(said) == ["Runs", "Why", "Build", "Model", "Licence"]
        assert said["Runs"] == "PyTorch, eager"
        assert (f"refused ({DAMAGE[kind][1]})" if kind else "local cache has none") in said["Why"]
        looked = "CXX=…/g++" if kind else "g++ and clang++"
        assert said["Build"].startswith(f"failed: There is no C++ compiler on this machine (looked for {looked})")
        assert not re.search(r"(^|[\s=('\"])/\w", " ".join(said.values())), "a path of this machine"
        for reason in (DAMAGE[kind][1] if kind else "has none", "no C++ compiler"):
            assert reason in app.log()

        page.click("#generate")
        assert "eager" in finished(page)
        page.context.close()
        assert len(LocalStore(store).quarantined()) == (1 if kind else 0)
        assert not list(tmp_path.rglob("evil.so"))
    finally:
        stop_app(app)
