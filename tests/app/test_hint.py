"""A prompt that goes beyond what the model knows: the video is made, and page and API say what was passed over."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.app.conftest import start_app, stop_app, visit
from tests.app.test_page import finished
from tests.fixtures.folders import make_folder

SAYS = {"knows": {"colour": ["red", "green"], "shape": ["ball"]}, "things": ["ball"], "examples": ["a red ball", "b"]}
TOLD = "This small model does not know “zebra<b>x</b”, and makes something else instead. It knows the colours red"


def test_hint(tmp_path: Path, browser: Browser) -> None:
    model = make_folder(tmp_path / "model", **SAYS)
    app = start_app(tmp_path / "app", MODEL_ID=str(model), PATH=str(tmp_path), CXX="")
    try:
        page = visit(browser, app.url)
        field, hint = page.locator("#prompt textarea"), page.locator("#hint")
        expect(field).to_have_value("a red ball")
        expect(field).to_have_attribute("placeholder", "b")
        expect(page.locator("#knows")).to_contain_text("red, green")
        expect(hint).to_be_hidden()
        field.fill("a zebra<b>x</b>")
        page.click("#generate")
        expect(hint).to_contain_text(TOLD)
        assert "eager" in finished(page)
        expect(hint).to_contain_text(TOLD)
        expect(hint).to_be_visible()
        field.fill("a red ball")
        page.click("#generate")
        expect(hint).to_be_hidden()
        page.context.close()

        _, _, report = app.client().predict("my ball", 7, 1, "64x64", api_name="/generate")
        assert (report["frames"], report["hint"]) == (9, "This small model does not know “my”, and passes it over.")
        assert "hint" not in app.client().predict("a red ball", 7, 1, "64x64", api_name="/generate")[2]
    finally:
        stop_app(app)
