"""Whatever a visitor sends gets an answer in plain words, no stack trace, and the app lives on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gradio_client.exceptions import AppError
from playwright.sync_api import Page, expect

from tests.app.conftest import App
from tests.app.test_page import use_seed

GOOD = {"prompt": "a red circle", "seed": 7, "blocks": 1}
REFUSED = [
    ("empty prompt", {"prompt": ""}, "prompt"),
    ("only spaces", {"prompt": " \n\t "}, "prompt"),
    ("only control characters", {"prompt": "\x00\x07\x1b"}, "prompt"),
    ("100,000 characters", {"prompt": "red " * 25_000}, "prompt"),
    ("prompt is a number", {"prompt": 5}, "prompt"),
    ("prompt is missing", {"prompt": None}, "prompt"),
    ("seed -1", {"seed": -1}, "seed must be a whole number from 0"),
    ("seed 2**63", {"seed": 2**63}, "seed must be a whole number from 0"),
    ("seed 10**400", {"seed": str(10**400)}, "seed must be a whole number from 0"),
    ("seed abc", {"seed": "abc"}, "seed must be a whole number from 0"),
    ("seed 1.5", {"seed": 1.5}, "seed must be a whole number from 0"),
    ("seed true", {"seed": True}, "seed must be a whole number from 0"),
    ("seed is a list", {"seed": [1]}, "seed must be a whole number from 0"),
    ("no blocks", {"blocks": 0}, "number of blocks must be"),
    ("negative blocks", {"blocks": -3}, "number of blocks must be"),
    ("a block too many", {"blocks": 61}, "number of blocks must be a whole number from 1 to 60"),
    ("huge block count", {"blocks": 10**9}, "number of blocks must be"),
    ("blocks is text", {"blocks": "many"}, "number of blocks must be"),
    ("no steps", {"steps": 0}, "number of steps must be"),
    ("huge step count", {"steps": 1000}, "number of steps must be"),
    ("size off the grid", {"size": "100x100"}, "multiple"),
    ("size zero", {"size": "0x0"}, "128"),
    ("huge size", {"size": "99984x99984"}, "128"),
    ("negative size", {"size": "-128x128"}, "size must be"),
    ("size is a word", {"size": "large"}, "size must be"),
    ("size is an object", {"size": {"height": 128}}, "size must be"),
]
ACCEPTED = [
    ("control characters", {"prompt": "a \x00red\x1b[31m\r\n circle\x7f"}),
    ("emoji", {"prompt": "a red circle 🔴🦊👩‍👩‍👧 moving"}),
    ("right to left", {"prompt": "عيد أحمر \u202e שלום a red circle"}),
    ("markup", {"prompt": "<img src=x onerror=alert(1)> a red circle"}),
    ("largest seed", {"seed": str(2**63 - 1)}),
    ("seed with spaces", {"seed": " 7 "}),
    ("unknown words", {"prompt": "zxqj vbnm"}),
]


def named(cases: list[tuple]) -> list:
    return [pytest.param(*case[1:], id=case[0]) for case in cases]


@pytest.mark.parametrize(("change", "words"), named(REFUSED))
def test_refused_in_plain_words(app: App, change: dict[str, Any], words: str) -> None:
    with pytest.raises(AppError) as caught:
        app.client().predict(**GOOD | change, api_name="/generate")
    message = str(caught.value)
    assert words in message
    assert len(message) < 300
    assert not any(sign in message for sign in ("Traceback", "Error", "Exception", ".py", "File "))


@pytest.mark.parametrize("change", [case[1] for case in ACCEPTED], ids=[case[0] for case in ACCEPTED])
def test_accepted(app: App, change: dict[str, Any]) -> None:
    _, seed, report = app.client().predict(**GOOD | change, api_name="/generate")
    assert report["frames"] == 9
    assert seed == int(change.get("seed", 7))


def test_page_says_it_and_goes_on(open_page: Callable[..., Page]) -> None:
    page = open_page()
    prompt, toast = page.locator("#prompt textarea"), page.locator(".toast-body")

    def refused(words: str) -> None:
        page.click("#generate")
        expect(toast.first).to_contain_text(words)
        assert "Traceback" not in toast.first.inner_text()
        page.get_by_test_id("toast-close").first.click()
        expect(toast).to_have_count(0)  # it fades; the next answer must not be taken from it
        expect(page.locator("#generate")).to_be_visible()

    prompt.fill("")
    refused("prompt")
    prompt.fill("x" * 100_000)
    refused("prompt")
    prompt.fill("<b>bold</b> 🦊 \u202eשלום")
    use_seed(page, "abc")
    refused("seed must be a whole number")
    use_seed(page, "-1")
    refused("seed must be a whole number")
    use_seed(page, "7")
    page.click("#generate")
    expect(page.locator("#status")).to_contain_text("seed 7")


def test_no_stack_trace_on_the_server_for_what_visitors_type(app: App) -> None:
    with pytest.raises(AppError):
        app.client().predict("", api_name="/generate")
    assert "Traceback" not in app.log()
