"""Folders of dead processes go, everything else stays."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import tempfile

import pytest

from compile_cache import scratch

fork = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def _make_and_die(how: str) -> None:
    folder = scratch.make()
    (folder / "p").mkdir()
    (folder / "p" / "a.so").write_bytes(b"x")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def test_private_and_removable():
    folder = scratch.make()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    scratch.remove(folder)
    scratch.remove(folder)
    assert not folder.exists()


def test_a_killed_process_is_cleared_up_after(tmp_path):
    mine = scratch.make()
    child = fork.Process(target=_make_and_die, args=("kill",))
    child.start()
    child.join(30)
    assert child.exitcode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    assert len(scratch.clear_stale(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == [mine]
    scratch.remove(mine)


def test_only_what_is_surely_ours(tmp_path):
    strange = [
        "onegraph-scratch-notes",
        f"onegraph-scratch-{2**22 + 5}-1-xyz",
        "aotinductor_abc123",
        "onegraph-build-1",
    ]
    for name in strange:
        (tmp_path / name).mkdir()
    file = tmp_path / f"onegraph-scratch-{2**22 + 5}-1-{'0' * 16}"
    file.write_text("a file, not a folder")
    living = tmp_path / f"onegraph-scratch-{os.getpid()}-{scratch.started(os.getpid())}-{'0' * 16}"
    reused = tmp_path / f"onegraph-scratch-{os.getpid()}-1-{'0' * 16}"
    target = tmp_path / "target"
    for folder in (living, reused, target):
        folder.mkdir()
    link = tmp_path / f"onegraph-scratch-{2**22 + 5}-2-{'0' * 16}"
    link.symlink_to(target)
    assert scratch.clear_stale(tmp_path) == [reused]
    assert all((tmp_path / name).exists() for name in strange)
    assert file.exists()
    assert link.exists()
    assert living.exists()


def test_processes():
    assert scratch.alive(os.getpid(), scratch.started(os.getpid()))
    assert scratch.alive(os.getpid(), 0)
    assert not scratch.alive(os.getpid(), 1)
    assert not scratch.alive(2**22 + 5, 0)
    assert scratch.started(2**22 + 5) == 0
