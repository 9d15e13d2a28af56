"""Three kinds of visitors who ask for the same video, and what each of them reads and has in the end.

Each keeps what is slow to start for all its requests: the Python client, one node process, one page in the browser.
Knows nothing of what goes wrong.
"""

from __future__ import annotations

import json
import re
import select
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradio_client.exceptions import AppError
from playwright.sync_api import Browser, Page, expect

from tests.app.conftest import visit
from tests.app.test_page import download
from tests.fixtures.browser import PATIENCE
from tests.zerogpu.conftest import Zero, identity
from tests.zerogpu.test_workers import frames_of

BLOCKS = 2
REQUEST = {"prompt": "a red circle", "seed": 7, "blocks": BLOCKS}
ADDRESS = f"?prompt=a+red+circle&seed=7&blocks={BLOCKS}"
SLOW = "exceeding its requested duration"  # the platform's remark on a busy machine; nothing failed
WIPE = """() => {
  document.querySelectorAll('.toast-close').forEach(button => button.click());
  document.querySelector('#status p').textContent = '';
}"""


@dataclass(frozen=True)
class Answer:
    """What the visitor reads of what went wrong, None if nothing did; and the frames in the file, 0 without one."""

    words: str | None
    frames: int


Ask = Callable[[str | None], Answer]  # of this user's; None for a visitor without the platform's token


@contextmanager
def all_kinds(zero: Zero, browser: Browser, npm_client: Path, folder: Path) -> Iterator[dict[str, Ask]]:
    """By name: what asks for one video."""
    page = visit(browser, zero.app.url + ADDRESS)
    expect(page.locator("#prompt textarea")).to_have_value(REQUEST["prompt"])
    command = ["node", "calls.mjs", zero.app.url]
    with subprocess.Popen(command, cwd=npm_client, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as node:
        try:
            yield {
                "Python": lambda user: _by_python(zero, user),
                "npm": lambda user: _by_npm(node, folder, user),
                "page": lambda user: _on_page(page, folder, user),
            }
        finally:
            node.kill()
    page.context.close()


def _by_python(zero: Zero, user: str | None) -> Answer:
    try:
        path, _, report = zero.client(user).predict(**REQUEST, api_name="/generate")
    except AppError as error:
        return Answer(str(error), 0)
    return Answer(report.get("problem"), frames_of(path))


def _by_npm(node: subprocess.Popen[str], folder: Path, user: str | None) -> Answer:
    node.stdin.write(json.dumps({"headers": identity(user), "request": REQUEST}) + "\n")
    node.stdin.flush()
    assert select.select([node.stdout], [], [], PATIENCE)[0], "the npm client does not answer"
    answer: dict[str, Any] = json.loads(node.stdout.readline())
    if answer["url"] is None:
        return Answer(answer["words"], 0)
    path, _ = urllib.request.urlretrieve(answer["url"], folder / "npm.mp4")
    return Answer(answer["words"], frames_of(str(path)))


def _on_page(page: Page, folder: Path, user: str | None) -> Answer:
    """Begins with no toast and an empty status line, so that what is read at the end is new."""
    page.set_extra_http_headers(identity(user))
    page.evaluate(WIPE)
    expect(page.locator(".toast-close")).to_have_count(0)
    page.click("#generate")
    expect(page.locator("#status")).to_contain_text(re.compile("no video was made|seed 7"))
    expect(page.locator("#generate")).to_be_visible()
    toasts = page.locator(":is(.toast-body.error, .toast-body.warning) [data-testid=toast-text]").all_inner_texts()
    told = [text for text in toasts if SLOW not in text]
    there = page.locator("#download").is_enabled()
    return Answer("\n".join(told) or None, frames_of(str(download(page, folder))) if there else 0)
