"""A binary that was built on one machine serves on others: real apps, the real client, a Hub on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.app.conftest import ROOT, App, start_app, stop_app, wait_for
from tests.fixtures.fake_hub import FakeHub

REPO, TOKEN = "me/binaries", "hf_writer"
PROMPT = "a big red circle moving right in the snow"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub(token=TOKEN) as hub:
        hub.repos.create(REPO)
        yield hub


@pytest.fixture
def no_compiler(tmp_path: Path) -> dict[str, str]:
    """An environment in which nothing can be built."""
    (tmp_path / "programs").mkdir()
    return {"PATH": str(tmp_path / "programs"), "CXX": ""}


def status(app: App) -> dict:
    return app.client().predict(api_name="/status")


def settled(app: App) -> dict:
    """The app's status when it has stopped looking for a binary."""
    return wait_for("nothing is fetched or built any more", lambda: (s := status(app))["building"] is None and s)


def serve(folder: Path, **environment: str) -> tuple[dict, dict]:
    """A fresh app in `folder`: its status when it has settled, and the report of a video made then."""
    app = start_app(folder, **environment)
    try:
        now = settled(app)
        return now, app.client().predict(PROMPT, 0, 1, api_name="/generate")[2]
    finally:
        stop_app(app)


def push(hub: FakeHub, cache: Path, key: str) -> None:
    env = {
        **os.environ,
        "ONEGRAPH_CACHE": str(cache),
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
    }
    env.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, "-m", "compile_cache", "push", key, "--repo", REPO]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_machine_without_a_compiler_serves_what_another_one_built(
    cache: Path, built: Callable[[str], dict], hub: FakeHub, no_compiler: dict[str, str], tmp_path: Path
) -> None:
    key = built("auto")["key"]
    push(hub, cache, key)
    there = {**no_compiler, "COMPILE_CACHE_REPO": REPO, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
    store = {"ONEGRAPH_CACHE": str(tmp_path / "store")}

    now, report = serve(tmp_path / "first", **there, **store)
    assert (now["mode"], now["key"], report["mode"], report["key"]) == ("aot", key, "aot", key)
    assert now["source"].startswith(f"Hub {REPO} at ")
    assert report["source"] == now["source"]
    assert len(now["build"]["sha256"]) == 64
    assert now["build"]["fields"]["environment"]["device"] == "cpu"

    hub.log.clear()
    again, _ = serve(tmp_path / "second", **there, **store)
    assert (again["mode"], again["source"]) == ("aot", now["source"])
    assert hub.log == []

    offline, report = serve(tmp_path / "third", **{**there, "HF_HUB_OFFLINE": "1"}, **store)
    assert (offline["mode"], report["mode"]) == ("aot", "aot")


def test_a_damaged_binary_on_the_hub_is_passed_over_and_said(
    cache: Path, built: Callable[[str], dict], hub: FakeHub, no_compiler: dict[str, str], tmp_path: Path
) -> None:
    key = built("auto")["key"]
    shutil.copytree(cache / "v1" / key, tmp_path / "entry")
    package = bytearray((tmp_path / "entry" / "package.pt2").read_bytes())
    package[len(package) // 2] ^= 1
    manifest = (tmp_path / "entry" / "manifest.json").read_bytes()
    hub.repos.put(REPO, {f"{key}/manifest.json": manifest, f"{key}/package.pt2": bytes(package)})
    there = {**no_compiler, "COMPILE_CACHE_REPO": REPO, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
    now, report = serve(tmp_path / "app", **there)
    assert (now["mode"], report["mode"]) == ("eager", "eager")
    assert f"Hub {REPO}: refused" in now["reason"]
    assert "no C++ compiler" in now["failure"]
