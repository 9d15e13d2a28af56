"""A machine without room, without a home, or that ends while the Hub is silent: one clear line each, or an entry."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from compile_cache.store import LocalStore
from tests.compile_cache.hubs import QUICK, REPO, line_of, machine, offer, passed_over, settle
from tests.fixtures.hub_faults import Socket

fork = multiprocessing.get_context("fork")


def test_no_room_for_the_download(hub, sound, tmp_path):
    """A real write error, in a child that may write small files only."""

    def child() -> None:
        tempfile.tempdir = str(tmp_path)
        one = machine(tmp_path / "one", hub)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        line = line_of(lambda: one.hub.find(sound.key))
        os._exit(7 if line.startswith("cannot keep the download in") and "File too large" in line else 1)

    assert exit_code(child) == 7
    assert not list(tmp_path.glob("onegraph-scratch-*"))


def exit_code(work) -> int:
    settle()
    process = fork.Process(target=work)
    process.start()
    process.join(120)
    return process.exitcode


@pytest.mark.parametrize("where", ["cache", "temporary folder"])
def test_a_full_disk(hub, tmp_path, where):
    """A small tmpfs."""
    made = offer(tmp_path, os.urandom(200_000))
    hub.repos.put(REPO, made.files())
    full = tmp_path / "full"
    full.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", full], capture_output=True).returncode:
        pytest.skip("this user cannot mount a tmpfs; the test above fills a quota instead")
    try:
        if where == "cache":
            entry = machine(full / "one", hub).hub.find(made.key)
            assert "not kept here: cannot store the binary in" in entry.source
            assert "No space left on device" in entry.source
            assert entry.package.read_bytes() == made.package
        else:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tempfile, "tempdir", str(full))
                line = passed_over(machine(tmp_path / "one", hub), made.key, QUICK.download)
            assert line.startswith(f"cannot keep the download in {full}")
            assert line.endswith("No space left on device")
            assert not list(full.iterdir())
    finally:
        subprocess.run(["umount", full], check=True)


@pytest.mark.parametrize("root", ["/proc/store", "/dev/null/store"])
def test_a_cache_that_cannot_be_written(hub, sound, tmp_path, root):
    one = machine(Path(root), hub)
    entry = one.hub.find(sound.key)
    assert entry.package.read_bytes() == sound.package
    assert "not kept here: cannot store the binary" in entry.source
    assert "not kept for the next start" in one.told[-1]


def test_no_temporary_folder(hub, sound, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nothing")
    line = passed_over(machine(tmp_path / "one", hub), sound.key, QUICK.ask)
    assert line.startswith("cannot make a folder in /proc/nothing")


SCRIPT = """
import sys
from compile_cache.deadline import Limits
from compile_cache.hub import HubStore, from_environment
from compile_cache.store import LocalStore
local = LocalStore()
print(local.note)
print(from_environment(local, lambda package, manifest: None).find(sys.argv[1]).source)
limits = {"limits": Limits(ask=0.5), "publish_seconds": 0.5}
silent = HubStore("me/cache", local, None, endpoint=sys.argv[2], token="hf_secret", **limits)
for ask in (lambda: silent.find("0" * 64), lambda: silent.publish(local.find(sys.argv[1]))):
    try:
        ask()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
print("end", flush=True)
"""


def test_a_process_without_a_home_and_one_that_ends_while_the_hub_is_silent(hub, sound, tmp_path):
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "HOME": "/dev/null/nobody",
        "TMPDIR": str(tmp_path),
        "HF_ENDPOINT": hub.url,
        "COMPILE_CACHE_REPO": REPO,
        "OMP_NUM_THREADS": "1",
    }
    with Socket() as silent:
        command = [sys.executable, "-c", SCRIPT, sound.key, silent.url]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    note, source, *errors, end = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "there is no usable home folder" in note
    assert source == f"Hub {REPO} at {hub.repos.get(REPO).commits[-1][:7]}"
    assert errors == ["HubError: no answer within 0.5 s", "HubError: not published: no answer within 0.5 s"]
    assert end == "end"
    assert LocalStore(tmp_path / f"onegraph-{os.getuid()}").find(sound.key).source == source
