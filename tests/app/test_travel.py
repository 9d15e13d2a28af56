"""A binary that one Space has built serves on others: real apps, the real client, a Hub on this machine.

The Space is `app`, which has a token. The others have none, and no compiler: what they serve, they have not built.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.app.conftest import REPO, App, settled, start_app, stop_app
from tests.fixtures.fake_hub import FakeHub

PROMPT = "a big red circle moving right in the snow"


@pytest.fixture
def other(tmp_path: Path, hub: FakeHub) -> dict[str, str]:
    """The environment of another machine."""
    (tmp_path / "programs").mkdir()
    nothing_to_build_with = {"PATH": str(tmp_path / "programs"), "CXX": ""}
    return {**nothing_to_build_with, "COMPILE_CACHE_REPO": REPO, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}


def serve(folder: Path, **environment: str) -> tuple[dict, dict]:
    """A fresh app in `folder`: its status when it has settled, and the report of a video made then."""
    running = start_app(folder, **environment)
    try:
        now = settled(running)
        return now, running.client().predict(PROMPT, 0, 1, api_name="/generate")[2]
    finally:
        stop_app(running)


def test_what_one_space_builds_serves_on_others(app: App, hub: FakeHub, other: dict[str, str], tmp_path: Path) -> None:
    here = settled(app)
    key, tip = here["key"], hub.repos.get(REPO).resolve("main")
    assert (here["mode"], here["published"]) == ("aot", f"published to {REPO} at {tip[:7]}")
    assert sorted(hub.repos.get(REPO).trees[tip]) == [f"{key}/manifest.json", f"{key}/package.pt2"]
    assert len(hub.repos.get(REPO).commits) == 2  # one to create it, one with the entry
    digest = app.client().predict(PROMPT, 0, 1, api_name="/generate")[2]["digest"]
    store = {"ONEGRAPH_CACHE": str(tmp_path / "store")}

    now, report = serve(tmp_path / "first", **other, **store)
    assert (now["mode"], now["key"], now["source"]) == ("aot", key, f"Hub {REPO} at {tip[:7]}")
    assert now["reason"] == "local cache has none"
    assert now["build"] == here["build"]
    assert (report["mode"], report["key"], report["source"]) == ("aot", key, now["source"])
    assert report["digest"] == digest

    hub.log.clear()
    again, report = serve(tmp_path / "second", **other, **store)
    assert (again["mode"], again["source"], report["digest"]) == ("aot", now["source"], digest)
    assert hub.log == []

    offline, report = serve(tmp_path / "third", **{**other, "HF_HUB_OFFLINE": "1"}, **store)
    assert (offline["mode"], report["mode"], report["digest"]) == ("aot", "aot", digest)


def test_a_damaged_binary_on_the_hub_is_passed_over_and_said(
    app: App, hub: FakeHub, other: dict[str, str], tmp_path: Path
) -> None:
    key = settled(app)["key"]
    sound = hub.repos.get(REPO)
    tree = sound.trees[sound.resolve("main")]
    files = {name: file.data or hub.repos.blobs[file.sha256] for name, file in tree.items()}
    package = bytearray(files[f"{key}/package.pt2"])
    package[len(package) // 2] ^= 1
    hub.repos.create("me/damaged")
    hub.repos.put("me/damaged", {**files, f"{key}/package.pt2": bytes(package)})
    now, report = serve(tmp_path / "app", **{**other, "COMPILE_CACHE_REPO": "me/damaged"})
    assert (now["mode"], report["mode"]) == ("eager", "eager")
    assert "Hub me/damaged: refused (the sha256 of the Hub's package is not the manifest's)" in now["reason"]
    assert report["reason"] == now["reason"]
    assert "no C++ compiler" in now["failure"]


@contextmanager
def full_disk(folder: Path) -> Iterator[Path]:
    """A folder with hardly any room; where this user may mount nothing, one that takes no file at all."""
    folder.mkdir()
    mounted = not subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder]).returncode
    try:
        yield folder if mounted else Path("/dev/null/store")
    finally:
        if mounted:
            subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("place", ["full disk", "read-only", "no home"])
def test_a_machine_that_can_keep_nothing_serves_all_the_same(
    app: App, other: dict[str, str], tmp_path: Path, place: str
) -> None:
    settled(app)
    with full_disk(tmp_path / "full") as full:
        where = {
            "full disk": {"ONEGRAPH_CACHE": str(full)},
            "read-only": {"ONEGRAPH_CACHE": "/proc/store"},
            "no home": {"ONEGRAPH_CACHE": "", "HOME": "/dev/null/nobody", "XDG_CACHE_HOME": ""},
        }[place]
        now, report = serve(tmp_path / "app", **other, **where)
    assert (now["mode"], report["mode"]) == ("aot", "aot")
    assert now["source"].startswith(f"Hub {REPO} at ")
    assert ("not kept here: cannot store the binary" in now["source"]) == (place != "no home")
