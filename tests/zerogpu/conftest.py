"""Fixtures: the app as ZeroGPU runs it, with the real spaces package and a stand-in for the platform's scheduler."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client

from tests.app.conftest import App, hub, start_app, stop_app, wait_for
from tests.fixtures.zerogpu import mischief
from tests.fixtures.zerogpu.scheduler import FakeScheduler

__all__ = ["hub"]  # a fixture of the app's tests


@dataclass
class Zero:
    """The app, its scheduler, and what its workers are told to do wrong."""

    app: App
    scheduler: FakeScheduler
    clients: dict[str | None, Client] = field(default_factory=dict)

    def client(self, user: str | None = None) -> Client:
        """This user's client, which sends the platform's identity token; None for one without."""
        if user not in self.clients:
            self.clients[user] = self.app.client(headers=identity(user))
        return self.clients[user]

    def plan(self, kind: str, after: int) -> None:
        """Something goes wrong in the worker when it has sent that many blocks."""
        mischief.plan(self.app.folder, kind, after)

    def clear(self) -> None:
        mischief.clear(self.app.folder)

    def settled(self) -> None:
        """Waits until every grant was given back and no video is being written."""
        wait_for("every grant is given back", lambda: not self.scheduler.open_grants())
        wait_for("no video is being written", lambda: not list((self.app.folder / "tmp").glob("onegraph-video-*")))


def token(user: str) -> str:
    """What the platform puts in front of a visitor's requests: a JWT, of which only the middle is read."""
    payload = base64.urlsafe_b64encode(json.dumps({"user": user}).encode()).decode().rstrip("=")
    return f"e30.{payload}.sig"


def identity(user: str | None) -> dict[str, str]:
    """The headers that say who asks."""
    return {"X-IP-Token": token(user)} if user else {}


def start_zero(folder: Path, scheduler: FakeScheduler, *, gpu: bool = False, **environment: Any) -> Zero:
    """Starts app.py in ZeroGPU mode; its home is a folder of its own. Mischief may be planned there already.

    gpu: whether the models are placed on "cuda"; see `launcher`.
    """
    (folder / "home").mkdir(parents=True)
    app = start_app(
        folder,
        ["-m", "tests.fixtures.zerogpu.launcher", str(folder), *(["gpu"] if gpu else [])],
        HOME=str(folder / "home"),
        SPACES_ZERO_DEVICE_API_URL=scheduler.url,
        **environment,
    )
    return Zero(app, scheduler)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory, built: Any, cache: Path) -> Iterator[Zero]:
    """One app for all tests, which finds its binary in the run's cache."""
    built("auto")
    with FakeScheduler() as scheduler:
        zero = start_zero(tmp_path_factory.mktemp("zero") / "app", scheduler, ONEGRAPH_CACHE=str(cache))
        yield zero
        stop_app(zero.app)
        wait_for("no worker outlives the app", lambda: not zero.app.family())
        assert not list((zero.app.folder / "tmp").glob("onegraph-*")), "nor does a video that it kept"


@pytest.fixture
def zero(running: Zero) -> Iterator[Zero]:
    """The app with an empty account at its scheduler; whatever a test does, nothing may be left behind."""
    running.scheduler.reset()
    running.clear()
    yield running
    running.clear()
    running.settled()
