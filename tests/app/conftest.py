"""Fixtures: the real app in a process of its own, a browser, and the npm client. Anything absent is a failure."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client
from playwright.sync_api import Browser, Page

from tests.fixtures.browser import PATIENCE
from tests.fixtures.fake_hub import FakeHub

ROOT = Path(__file__).parents[2]
BUILD_SECONDS = 3600  # until the background build is taken for hung
REPO, TOKEN = "me/binaries", "hf_writer"
LAPTOP = {"viewport": {"width": 1366, "height": 768}}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


@dataclass
class App:
    """`python app.py`, running, with a cache, a temporary folder and a log of its own."""

    url: str
    process: subprocess.Popen[bytes]
    folder: Path
    mark: str  # in the environment of the process and of everything it starts
    started_in: float  # seconds from the process start to the first answered page

    def client(self, **options: Any) -> Client:
        return Client(self.url, verbose=False, download_files=str(self.folder / "downloads"), **options)

    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8", "replace")

    def family(self) -> list[int]:
        """Every living process that the app started, itself included."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    found += [int(entry.name)] if state != "Z" else []
            except OSError:
                continue  # gone meanwhile, or somebody else's
        return found


def wait_for(what: str, condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """The first true value of `condition`; fails naming `what` when the time is up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.1)
    pytest.fail(f"{what}: not within {seconds:.0f} s")


def free_port() -> int:
    """A port that nobody uses, and that the kernel gives to no outgoing connection before the app is up."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    pytest.fail("no free port was found")


def start_app(
    folder: Path,
    program: Sequence[str] = ("app.py",),
    patience: float = PATIENCE,
    root: Path = ROOT,
    inherited: Mapping[str, str] = os.environ,
    **environment: str,
) -> App:
    """Starts the app, with an empty cache unless ONEGRAPH_CACHE is given, and waits until its page answers.

    program: what Python runs, for an app that is started by something else; root: the checkout to run it in.
    """
    port, mark = free_port(), uuid.uuid4().hex
    (folder / "tmp").mkdir(parents=True)
    own = {
        "GRADIO_SERVER_PORT": str(port),
        "GRADIO_TEMP_DIR": str(folder / "gradio"),
        "TMPDIR": str(folder / "tmp"),
        "ONEGRAPH_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "TEST_MARK": mark,
    }
    begin = time.monotonic()
    with open(folder / "log", "wb") as log:
        command = [sys.executable, *program]
        process = subprocess.Popen(command, cwd=root, env={**inherited, **own, **environment}, stdout=log, stderr=log)
    app = App(f"http://127.0.0.1:{port}/", process, folder, mark, 0.0)

    def answers() -> bool:
        if process.poll() is not None:
            pytest.fail(f"app.py ended with status {process.returncode}:\n{app.log()[-3000:]}")
        try:
            with urllib.request.urlopen(app.url, timeout=5) as page:
                return page.status == 200
        except OSError:
            return False

    try:
        wait_for("the page answers", answers, patience)
    except BaseException:
        stop_app(app)
        raise
    app.started_in = time.monotonic() - begin
    return app


def stop_app(app: App) -> None:
    """Ends it as a terminal or a Space would, then by force."""
    app.process.send_signal(signal.SIGTERM)
    try:
        app.process.wait(10)
    except subprocess.TimeoutExpired:
        app.process.kill()
        app.process.wait()


def settled(app: App) -> dict:
    """The app's status when it has stopped looking for a binary."""
    client = app.client()

    def look() -> dict | None:
        now = client.predict(api_name="/status")
        return now if now["building"] is None else None

    return wait_for("nothing is fetched or built any more", look, BUILD_SECONDS)


@pytest.fixture(scope="session")
def hub() -> Iterator[FakeHub]:
    """The Hub that `app` publishes to, with its repository."""
    with FakeHub(token=TOKEN) as hub:
        hub.repos.create(REPO)
        yield hub


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory, cache: Path, hub: FakeHub) -> Iterator[App]:
    """One app for all tests. Its cache begins empty: it serves eager first, builds, serves AoT and publishes.

    It fills the run's cache, so that later tests need not compile again, unless that has something in it already.
    """
    folder = tmp_path_factory.mktemp("app")
    store = folder / "cache" if any(cache.iterdir()) else cache
    on_hub = {"COMPILE_CACHE_REPO": REPO, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
    running = start_app(folder, ONEGRAPH_CACHE=str(store), HF_TOKEN=TOKEN, HF_HUB_DISABLE_XET="1", **on_hub)
    yield running
    stop_app(running)


def visit(browser: Browser, url: str, **options: Any) -> Page:
    """The app's page, filled by the server, in a browser context of its own with these options."""
    page = browser.new_context(accept_downloads=True, **{**LAPTOP, **options}).new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(url)
    page.wait_for_selector("#generate")
    page.wait_for_selector(".badge")  # the page has heard from the server once
    return page


@pytest.fixture
def open_page(app: App, browser: Browser) -> Iterator[Callable[..., Page]]:
    """open_page(path="", **options of a browser context) -> a page of the app in a context of its own."""
    yield lambda path="", **options: visit(browser, app.url + path, **options)
    for context in browser.contexts:
        context.close()
