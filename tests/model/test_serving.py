"""Serving begins at once, builds beside it, switches over, and says why when it cannot; builds die with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from model import serving
from model.runner import Origin
from model.serving import Serving

EAGER = SimpleNamespace(mode="eager", origin=Origin(reason="no binary for this machine yet"))
AOT = SimpleNamespace(mode="aot", origin=Origin("local cache", "ab" * 32, 900_000, 0.04))


def until(condition: Callable[[], Any], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not within its time"
        time.sleep(0.02)


def script(text: str) -> list[str]:
    return [sys.executable, "-u", "-c", text]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Serving]:
    """served(runner, runner, ...): a Serving that finds one of them each time it looks."""

    def make(*runners: SimpleNamespace) -> Serving:
        found = iter(runners)
        monkeypatch.setattr(serving, "open_runner", lambda folder, mode: next(found))
        monkeypatch.setattr(serving, "Pipeline", lambda folder, runner: SimpleNamespace(runner=runner))
        return Serving(Path("somewhere"))

    return make


def test_switches_to_the_binary(served: Callable[..., Serving]) -> None:
    now = served(EAGER, AOT)
    before = now.pipeline
    assert now.status().facts() == {"Runs": "PyTorch, eager", "Why": "no binary for this machine yet"}
    step = "import sys, time, warnings; print('exporting', file=sys.stderr); warnings.warn('x'); time.sleep(1); "
    now.build_in_background(script(step + 'print(\'{"key": "k"}\')'))
    assert now.status().label == "eager, compiling …"
    until(lambda: now.status().building == "exporting")
    until(lambda: now.status().building is None)
    assert before.runner is EAGER  # a request that runs keeps what it began with
    assert now.status().label == "AoT"
    assert now.status().facts() == {
        "Runs": "AoT binary of the whole graph",
        "Binary from": "local cache",
        "Key": "ab" * 32,
        "Size": "0.90 MB",
        "Loaded in": "40 ms",
    }


def test_a_binary_that_is_there_is_not_built(served: Callable[..., Serving]) -> None:
    now = served(AOT)
    now.build_in_background(script("raise SystemExit('must not run')"))
    assert (now.status().building, now.status().reason) == (None, None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('print(\'{"error": "no C++ compiler"}\'); raise SystemExit(1)', "no C++ compiler"),
        ('print(\'{"error": "no C++ compiler"}\')', "no C++ compiler"),
        ("raise SystemExit(3)", "exit status 3"),
        ("print('not json'); raise SystemExit(1)", "exit status 1"),
        ("print('[]'); raise SystemExit(1)", "exit status 1"),
        ("import os; os.kill(os.getpid(), 9)", "exit status 137"),
    ],
)
def test_a_failed_build_stays_eager_and_says_why(served: Callable[..., Serving], text: str, reason: str) -> None:
    now = served(EAGER)
    now.build_in_background(script(text))
    until(lambda: now.status().building is None)
    assert now.status().mode == "eager"
    assert reason in now.status().facts()["Why"]


def test_a_command_that_is_not_there(served: Callable[..., Serving]) -> None:
    now = served(EAGER)
    now.build_in_background(["/nowhere/compile"])
    until(lambda: now.status().building is None)
    assert "exit status" in now.status().reason


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_leashed_command_and_its_children_end_with_the_parent(tmp_path: Path, number: signal.Signals) -> None:
    child = "import time; open('grandchild', 'w').write(str(__import__('os').getpid())); time.sleep(600)"
    command = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    parent = subprocess.Popen(
        script(
            "import subprocess, sys, time; from model.leash import leashed; "
            f"subprocess.Popen(leashed([sys.executable, '-c', {command!r}]), cwd=None); time.sleep(600)"
        ),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(serving.__file__).parents[1])},
    )
    file = tmp_path / "grandchild"
    until(lambda: file.exists() and file.read_text())
    parent.send_signal(number)
    parent.wait()
    until(lambda: not Path(f"/proc/{file.read_text()}").exists())
