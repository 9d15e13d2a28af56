"""A repository on the Hub that offers what must not run, or fails: the reason is told, and requests are served.

The model is a small one with random weights. The library in what is offered for it leaves a mark when it is loaded.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from compile_cache.hub import LIMITS
from model.pipeline import Request
from model.service import serving
from model.service.serving import Serving
from model.service.sources import hub_source
from tests.compile_cache import evil
from tests.compile_cache.hubs import REPO, SLACK, Offer
from tests.compile_cache.packages import manifest_of, plain_members, write_zip
from tests.fixtures.fake_hub import FakeHub
from tests.fixtures.folders import fields_of, make_folder
from tests.model.service.test_serving import script, until

NO_BUILD = script('print(\'{"error": "no build here"}\'); raise SystemExit(1)')
TIP, BYTES = "/revision/main", "/blob/"
Told = Callable[..., dict[str, str]]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        yield hub


@pytest.fixture
def hub(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    server.reset(REPO)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)  # as HF_ENDPOINT does in a process of its own
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setenv("COMPILE_CACHE_REPO", REPO)
    return server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture(scope="module")
def tripwire(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    return evil.tripwire(tmp_path_factory.mktemp("tripwire"))


@pytest.fixture
def made(folder: Path, tripwire: tuple[bytes, Path], tmp_path: Path) -> Offer:
    """An entry for the small model that passes every check but the trial run."""
    path = write_zip(tmp_path / "offer.pt2", plain_members(tripwire[0], ("condition", "generate")))
    return Offer(manifest_of(fields_of(folder), path), path.read_bytes())


@pytest.fixture
def told(folder: Path, tripwire: tuple[bytes, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """told(seconds): starts, waits until all that could give a binary was tried, serves; what a visitor is told."""
    monkeypatch.setenv("ONEGRAPH_CACHE", str(tmp_path / "store"))

    def run(seconds: float = 60) -> dict[str, str]:
        now = Serving(folder)
        now.prepare_in_background(NO_BUILD)
        until(lambda: now.status().building is None, seconds)
        assert [len(block.frames) for block in now.pipeline.stream(Request("a red ball", 7, 1, 64, 64))] == [9]
        served, facts = now.served(now.pipeline), now.status().facts()
        assert (served.mode, served.reason) == ("eager", facts["Why"])
        assert facts["Build"] == "failed: no build here"
        assert facts["Why"].isprintable()
        json.dumps(now.status().as_dict()).encode()
        return facts

    yield run
    assert not tripwire[1].exists(), "the library was loaded"


@pytest.mark.parametrize("case", evil.CASES)
def test_what_must_not_run_is_refused_and_said(
    hub: FakeHub, made: Offer, tmp_path: Path, told: Told, case: str
) -> None:
    reason = evil.plan(case, hub, made, tmp_path)
    why = told()["Why"]
    assert why.startswith(f"local cache has none; Hub {REPO}: refused (")
    assert reason in why


def test_what_differs_from_its_pin(
    hub: FakeHub, made: Offer, tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos.put(REPO, made.files())
    pins = tmp_path / "pins.json"
    pins.write_text(f'{{"{made.key}": "{"0" * 64}"}}')
    monkeypatch.setattr(serving, "hub_source", lambda *given, **named: hub_source(*given, **named, pins=pins))
    assert "pinned to the package 000000000000…" in told()["Why"]


def test_what_dies_in_its_trial_run(
    hub: FakeHub, made: Offer, tmp_path: Path, told: Told, tripwire: tuple[bytes, Path]
) -> None:
    """It passes every check before that, and is loaded: in a process of its own only."""
    proven = Offer(replace(made.manifest, reference="a" * 64), made.package)
    hub.repos.put(REPO, proven.files())
    why = told()["Why"]
    assert f"Hub {REPO}: refused (the trial run" in why
    assert tripwire[1].exists()
    tripwire[1].unlink()


FAULTS = {
    "401": (dict(match=TIP, status=401), "the Hub answered 401"),
    "403": (dict(match=TIP, status=403), "the Hub answered 403: no access"),
    "404": (dict(match=TIP, status=404), "the Hub answered 404"),
    "412": (dict(match=TIP, status=412), "the Hub answered 412"),
    "429": (dict(match=TIP, status=429), "the Hub answered 429: too many requests"),
    "429 with Retry-After": (dict(match=TIP, status=429, headers={"Retry-After": "600"}), "asks to wait 600 s"),
    "500": (dict(match=TIP, status=500), "the Hub answered 500"),
    "503": (dict(match=BYTES, status=503), "the Hub answered 503"),
    "accepted and silent": (dict(match=TIP, silent=True), "no answer within 20 s"),
    "slow drip": (dict(match=BYTES, drip=0.3), "too slow to be done within 120 s"),
    "disconnected half-way": (dict(match=BYTES, cut=30), "the connection to the Hub broke off"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_hub_that_fails(hub: FakeHub, made: Offer, told: Told, fault: str) -> None:
    """Within the budget of a miss."""
    how, reason = FAULTS[fault]
    hub.repos.put(REPO, made.files())
    hub.fail(**how)
    why = told(LIMITS.ask + SLACK)["Why"]
    assert why.startswith(f"local cache has none; Hub {REPO}: error (")
    assert reason in why


def test_a_hub_that_refuses_the_connection(hub: FakeHub, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert f"Hub {REPO}: error (the Hub cannot be reached (" in told()["Why"]


def test_a_repository_without_the_key(hub: FakeHub, told: Told) -> None:
    assert told()["Why"] == f"local cache has none; Hub {REPO} has none"


@pytest.mark.parametrize(
    "name", ["me/\udcffcache", "me/cache\n\x1b[2J", "a/b/c", "x" * 100_000, "https://huggingface.co/me/x"]
)
def test_a_name_that_is_none(
    hub: FakeHub, folder: Path, told: Told, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COMPILE_CACHE_REPO", name)
    why = told()["Why"]
    assert "is not the name of a Hub repository" in why
    assert why.isprintable()
    assert len(why) < 1000
    assert hub.log == []


def test_a_store_that_others_may_write_to(
    hub: FakeHub, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of what is in it is run, nothing is put there, and the app is up."""
    (tmp_path / "shared" / "v1").mkdir(parents=True)
    (tmp_path / "shared").chmod(0o777)
    monkeypatch.setenv("ONEGRAPH_CACHE", str(tmp_path / "shared"))
    now = Serving(make_folder(tmp_path / "small"))
    now.prepare_in_background(NO_BUILD)
    until(lambda: now.status().building is None)
    assert "others may write to the store …/shared" in now.status().facts()["Why"]
    assert "others may write to the store …/shared" in now.status().facts()["Build"]
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["v1"]


def test_how_far_a_download_is_can_be_seen(hub: FakeHub, made: Offer, folder: Path, told: Told) -> None:
    hub.repos.put(REPO, made.files())
    fault = hub.fail(BYTES, drip=0.0004)
    now = Serving(folder)
    now.prepare_in_background(NO_BUILD)
    until(lambda: "0 % of" in (now.status().building or ""))
    assert now.status().facts()["Build"].startswith(f"downloading from {REPO}: ")
    assert now.status().label == "eager, downloading …"
    fault.over = True
    until(lambda: now.status().building is None)
