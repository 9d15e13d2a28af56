"""Killed at any point of downloading, storing and publishing: the next start works, and nothing half-written is used.

A child process takes one function over and dies of SIGKILL in it; nothing of this is known to the code.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from huggingface_hub import _commit_api, constants

from compile_cache import files, hub_fetch, hub_repo, owner, provenance, refusals
from compile_cache import store as store_module
from compile_cache.hub_repo import HubRepo
from compile_cache.manifest import PACKAGE
from compile_cache.store import MANIFEST, LocalStore
from tests.compile_cache.hubs import REPO, TOKEN, Trial, machine, offer, settle
from tests.compile_cache.killing import after, die, half_a_file
from tests.fixtures.fake_hub import FakeHub

fork = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def server():
    with FakeHub(token=TOKEN) as hub:
        yield hub


@pytest.fixture(autouse=True)
def own_places(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)


def half_a_chunk(file: hub_repo._File, data: bytes) -> None:
    os.write(file._handle, data[: len(data) // 2])
    die()


def killed(work: Callable[[], object], owner_of: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Runs `work` in a child in which that function is another one, and sees it die."""

    def child() -> None:
        setattr(owner_of, name, replacement)
        work()

    settle()
    process = fork.Process(target=child)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


# Where a machine dies that takes an entry from the repository.
TAKING = {
    "before it knows the commit": (HubRepo, "tip", die),
    "when it knows the commit": (HubRepo, "manifest", die),
    "with the manifest, before the package": (HubRepo, "package", die),
    "with half of the package downloaded": (hub_repo._File, "write", half_a_chunk),
    "with the package downloaded, before its members are checked": (hub_fetch, "check_members", die),
    "in the trial run": (Trial, "__call__", die),
    "with half of the package in the cache": (files.shutil, "copyfileobj", half_a_file),
    "with the package in the cache, before the manifest": (files, "write_new", after(files.write_new)),
    "before it is noted where it came from": (provenance, "write", die),
    "when it is noted where it came from": (provenance, "write", after(provenance.write)),
    "before the entry gets its name": (store_module.os, "rename", die),
    "when the entry has its name": (store_module.os, "rename", after(os.rename)),
}


@pytest.mark.parametrize("point", TAKING)
def test_killed_while_taking(hub, tmp_path, point):
    made = offer(tmp_path)
    hub.repos.put(REPO, made.files())
    killed(lambda: machine(tmp_path / "one", hub).hub.find(made.key), *TAKING[point])
    one = machine(tmp_path / "one", hub)
    found = one.local.find(made.key)  # whole or not there
    assert found is None or found.package.read_bytes() == made.package
    assert (found is not None) == (point in list(TAKING)[-1:])
    entry = found or one.hub.find(made.key)
    assert entry.package.read_bytes() == made.package
    assert one.trial.seen == ([] if found else [made.package])
    assert one.local.quarantined() == []
    assert one.hub.refusals.all() == []
    # Nothing is left of the dead one but, at most, in the folder of the next that needs none.
    owner.clear(tmp_path / "tmp", "onegraph-scratch")
    assert not list((tmp_path / "tmp").glob("onegraph-scratch-*"))
    again = machine(tmp_path / "one", hub).local
    again.remove(made.key)
    made.put(again, tmp_path)
    assert list((again.root / "incoming").iterdir()) == []


REFUSING = {
    "before the refusal is written": (files, "write_new", die),
    "before the refusal has its name": (refusals.os, "replace", die),
    "when the refusal has its name": (refusals.os, "replace", after(os.replace)),
}


@pytest.mark.parametrize("point", REFUSING)
def test_killed_while_refusing(hub, tmp_path, point):
    made = offer(tmp_path)
    hub.repos.put(REPO, {**made.files(), made.package_path: b"PK\0 something else"})
    killed(lambda: machine(tmp_path / "one", hub).hub.find(made.key), *REFUSING[point])
    one = machine(tmp_path / "one", hub)
    with pytest.raises(hub_fetch.PackageRefused, match="the Hub's package has 18 bytes"):
        one.hub.find(made.key)
    assert one.trial.seen == []
    assert one.local.entries() == []
    [(key, refusal)] = one.hub.refusals.all()
    assert (key, refusal.content.repo) == (made.key, REPO)


PULLING = {
    "with half of the package pulled": (files.shutil, "copyfileobj", half_a_file),
    "before the pulled entry gets its name": (store_module.os, "rename", die),
    "before it is noted where the pulled entry came from": (provenance, "write", die),
}


@pytest.mark.parametrize("point", PULLING)
def test_killed_while_pulling(hub, tmp_path, point):
    made = offer(tmp_path)
    hub.repos.put(REPO, made.files())
    killed(lambda: machine(tmp_path / "one", hub).hub.pull(made.key), *PULLING[point])
    one = machine(tmp_path / "one", hub)
    assert one.hub.find(made.key).package.read_bytes() == made.package
    assert one.trial.seen == [made.package]
    one.local.remove(made.key)
    assert one.hub.pull(made.key) is not None
    assert one.hub.find(made.key) is not None


# Where a machine dies that publishes, and whether the entry is there afterwards.
PUBLISHING = {
    "before anything is asked": (HubRepo, "tip", die, False),
    "before the upload": (_commit_api, "_upload_files", die, False),
    "in the upload": (_commit_api, "lfs_upload", die, False),
    "after the upload": (_commit_api, "_upload_files", after(_commit_api._upload_files), False),
    "before the commit": (_commit_api, "_send_commit", die, False),
    "when the commit is made": (_commit_api, "_send_commit", after(_commit_api._send_commit), True),
}


@pytest.mark.parametrize("point", PUBLISHING)
def test_killed_while_publishing(hub, tmp_path, point):
    *where, there = PUBLISHING[point]
    made = offer(tmp_path)
    entry = made.put(LocalStore(tmp_path / "one"), tmp_path)
    killed(lambda: machine(tmp_path / "one", hub, token=TOKEN).hub.publish(entry), *where)
    other = machine(tmp_path / "other", hub)
    found = other.hub.find(made.key)
    assert (found is not None) == there
    assert found is None or found.package.read_bytes() == made.package
    # The builder's next start serves from its cache and publishes.
    one = machine(tmp_path / "one", hub, token=TOKEN)
    assert one.hub.publish(one.local.find(made.key)).outcome == ("identical" if there else "published")
    tree = hub.repos.get(REPO).trees[hub.repos.get(REPO).resolve("main")]
    assert sorted(tree) == sorted(f"{made.key}/{name}" for name in (MANIFEST, PACKAGE))
    assert len(hub.repos.get(REPO).commits) == 2
