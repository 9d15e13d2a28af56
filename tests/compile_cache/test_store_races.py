"""A local store under several processes, and under some that are killed half-way: whole entries only."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from compile_cache import files as files_module
from compile_cache import owner
from compile_cache.store import LocalStore
from tests.compile_cache.killing import after, die, half_a_file

fork = multiprocessing.get_context("fork")


KILLS = {
    "before the package": (files_module, "write_new", lambda: die),
    "half of the package": (shutil, "copyfileobj", lambda: half_a_file),
    "after the package": (files_module, "write_new", lambda: after(files_module.write_new)),
    "after the manifest": (files_module, "write_new", lambda: after(files_module.write_new, 2)),
    "before the rename": (os, "rename", lambda: die),
    "after the rename": (os, "rename", lambda: after(os.rename)),
    "before the folder is synced": (files_module, "sync", lambda: after(files_module.sync)),
}


def _put_and_die(root: Path, manifest, package: Path, point: str) -> None:
    module, name, replacement = KILLS[point]
    setattr(module, name, replacement())
    LocalStore(root).put(manifest, package)


@pytest.mark.parametrize("point", KILLS)
def test_killed_while_storing(store, small, point):
    manifest, package = small
    child = fork.Process(target=_put_and_die, args=(store.root, manifest, package, point))
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL
    found = store.find(manifest.key)  # whole or not there, never half
    assert found is None or found.package.read_bytes() == package.read_bytes()
    assert (found is not None) == (point == "after the rename")
    assert store.put(manifest, package).manifest == manifest
    assert list((store.root / "incoming").iterdir()) == []
    assert store.quarantined() == []


def test_incoming_of_living_processes_is_left_alone(store, small):
    manifest, package = small
    store.put(manifest, package)
    mine = store.root / "incoming" / f"{'a' * 64}-{owner.mark()}"
    reused = store.root / "incoming" / f"{'a' * 64}-{owner.namespace()}-{os.getpid()}-1-{'0' * 16}"
    elsewhere = store.root / "incoming" / f"{'a' * 64}-{'0' * 12}-{2**22 + 5}-1-{'0' * 16}"
    stranger = store.root / "incoming" / "somebody's notes"
    for folder in (mine, reused, elsewhere, stranger):
        folder.mkdir()
    store.remove(manifest.key)
    store.put(manifest, package)
    assert mine.exists()
    assert stranger.exists()
    assert elsewhere.exists()  # another container's; nobody here can say whether it still runs
    assert not reused.exists()


def _put_after(barrier, root: Path, manifest, package: Path) -> None:
    barrier.wait(120)
    LocalStore(root).put(manifest, package)


def test_six_processes_put_the_same_key(store, small):
    manifest, package = small
    for _ in range(5):
        barrier = fork.Barrier(6)
        children = [fork.Process(target=_put_after, args=(barrier, store.root, manifest, package)) for _ in range(6)]
        for child in children:
            child.start()
        for child in children:
            child.join(120)
        assert [child.exitcode for child in children] == [0] * 6
        assert store.entries() == [manifest.key]
        assert store.find(manifest.key) is not None
        assert list((store.root / "incoming").iterdir()) == []
        assert store.quarantined() == []
        store.remove(manifest.key)


def _hold(root: Path, key: str, held) -> None:
    with LocalStore(root).building(key):
        held.set()
        time.sleep(60)


def test_one_builder_at_a_time_and_a_killed_one_frees_the_key(store):
    key, held = "a" * 64, fork.Event()
    child = fork.Process(target=_hold, args=(store.root, key, held))
    child.start()
    assert held.wait(120)
    with (store.root / "locks" / key).open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with store.building("b" * 64):  # another key is free
        pass
    child.kill()
    with store.building(key):
        pass
