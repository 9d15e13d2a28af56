"""Folders of dead processes go, everything else stays."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import tempfile
import time
from pathlib import Path

import pytest

from compile_cache import owner, scratch
from compile_cache.errors import StoreError

fork = multiprocessing.get_context("fork")
NOBODY = 2**22 + 5  # above the greatest process id that Linux gives


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def _make_and_die() -> None:
    folder = scratch.make()
    (folder / "p").mkdir()
    (folder / "p" / "a.so").write_bytes(b"x")
    os.kill(os.getpid(), signal.SIGKILL)


def test_private_and_removable():
    folder = scratch.make()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    scratch.remove(folder)
    scratch.remove(folder)
    assert not folder.exists()


def test_a_killed_process_is_cleared_up_after(tmp_path):
    mine = scratch.make()
    child = fork.Process(target=_make_and_die)
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    assert len(owner.clear(tmp_path, scratch.PREFIX)) == 1
    assert list(tmp_path.iterdir()) == [mine]
    scratch.remove(mine)


def test_a_fork_does_not_remove_its_parents_folders():
    mine = scratch.make()
    child = fork.Process(target=scratch._remove_all)
    child.start()
    child.join(120)
    assert mine.exists()
    scratch._remove_all()
    assert not mine.exists()


def name(namespace: str | None = None, pid: int = NOBODY, start: int = 1) -> str:
    return f"{scratch.PREFIX}-{namespace or owner.namespace()}-{pid}-{start}-{'0' * 16}"


def test_only_what_is_surely_ours(tmp_path):
    strange = ["onegraph-scratch-notes", name()[:-1] + "x", f"onegraph-scratch-{NOBODY}-1-{'0' * 16}", "onegraph-1"]
    for folder in strange:
        (tmp_path / folder).mkdir()
    file, link, target = tmp_path / name(start=2), tmp_path / name(start=3), tmp_path / "target"
    file.write_text("a file, not a folder")
    living = tmp_path / name(pid=os.getpid(), start=owner.started(os.getpid()))
    reused = tmp_path / name(pid=os.getpid(), start=1)
    for folder in (living, reused, target):
        folder.mkdir()
    link.symlink_to(target)
    assert owner.clear(tmp_path, scratch.PREFIX) == [reused]
    assert all((tmp_path / folder).exists() for folder in strange)
    assert file.exists()
    assert link.exists()
    assert living.exists()


def test_folders_of_another_container_go_by_age_alone(tmp_path):
    """The same process id may run there, whatever it is here."""
    fresh, old = tmp_path / name("0" * 12), tmp_path / name("0" * 12, pid=os.getpid(), start=7)
    for folder in (fresh, old):
        folder.mkdir()
    before = time.time() - owner.FOREIGN_SECONDS - 60
    os.utime(old, (before, before))
    assert owner.clear(tmp_path, scratch.PREFIX) == [old]
    assert fresh.exists()


@pytest.mark.parametrize("what", ["another host", "another start of the machine", "another PID namespace"])
def test_namespaces_are_told_apart(what, monkeypatch):
    here = owner.namespace()
    assert owner.namespace() == here
    if what == "another host":
        monkeypatch.setattr("platform.node", lambda: "somewhere-else")
    elif what == "another start of the machine":
        monkeypatch.setattr(Path, "read_text", lambda self: "other boot\n")
    else:
        monkeypatch.setattr(os, "stat", lambda path: os.stat_result([0, 4242, *[0] * 8]))
    assert owner.namespace() != here


def test_no_place(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    with pytest.raises(StoreError, match="cannot make a folder in /dev/null"):
        scratch.make()

    def nowhere() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with pytest.raises(StoreError, match="no temporary folder"):
        scratch.make()


def test_processes():
    assert owner.alive(os.getpid(), owner.started(os.getpid()))
    assert owner.alive(os.getpid(), 0)
    assert not owner.alive(os.getpid(), 1)
    assert not owner.alive(NOBODY, 0)
    assert owner.started(NOBODY) == 0
