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
import torch

from compile_cache.errors import HubError
from compile_cache.hardware import place_here
from compile_cache.store import LocalStore
from model.binary import BinaryMissing
from model.pipeline import Request
from model.runner import Held, Named, Origin
from model.service import serving
from model.service.building import step_in
from model.service.recording import Served
from model.service.serving import Serving
from model.service.status import without_folders
from tests.conftest import EMBEDDED
from tests.fixtures.damage import DAMAGE, plant

EAGER = SimpleNamespace(mode="eager", origin=Origin(reason="no binary for this machine yet"))
NOTHING = SimpleNamespace(device=torch.device("cpu"), config=None, dtype=torch.float32, weights=list)
AOT = SimpleNamespace(mode="aot", origin=Origin("local cache", "ab" * 32, 900_000, 0.04))


def until(condition: Callable[[], Any], seconds: float = 60) -> None:
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
        monkeypatch.setattr(serving, "load_parts", lambda folder, **named: NOTHING)
        monkeypatch.setattr(serving, "binary_fields", lambda parts: {"environment": place_here("cpu")})
        monkeypatch.setattr(serving, "open_parts", lambda *given: next(found))
        monkeypatch.setattr(serving, "Pipeline", lambda folder, runner: SimpleNamespace(runner=runner))
        return Serving(Path("somewhere"))

    return make


def test_switches_to_the_binary(served: Callable[..., Serving], tmp_path: Path) -> None:
    now = served(EAGER, AOT)
    before = now.pipeline
    assert now.status().facts() == {"Runs": "PyTorch, eager", "Why": "no binary for this machine yet"}
    seen = tmp_path / "seen"  # the build goes on when this is there
    step = f"import os, sys, time; print('exporting', file=sys.stderr)\nwhile not os.path.exists({str(seen)!r}): "
    now.prepare_in_background(script(step + 'time.sleep(0.01)\nprint(\'{"key": "k"}\')'))
    assert now.status().label == "eager, compiling …"
    until(lambda: now.status().building == "exporting")
    assert now.status().facts() == {
        "Runs": "PyTorch, eager",
        "Why": "no binary for this machine yet",
        "Build": "exporting",
    }
    seen.touch()
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
    assert now.status().build_facts() == {
        "Source": "local cache",
        "Key": "ab" * 32,
        "Size": "900000 bytes",
        "Tried before": "no binary for this machine yet",
    }


def test_a_build_by_the_caller(served: Callable[..., Serving]) -> None:
    now, seen = served(EAGER, AOT), []

    def build() -> None:
        seen.append(now.status().label)

    now.prepare(build)
    assert seen == ["eager, compiling …"]
    assert (now.status().label, now.status().failure) == ("AoT", None)
    now.prepare(build)
    assert len(seen) == 1, "there is nothing to build any more"


def raises() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(("build", "words"), [(lambda: "no GPU is left", "no GPU is left"), (raises, "ZeroDivision")])
def test_a_callers_build_that_fails(served: Callable[..., Serving], build: Callable[[], Any], words: str) -> None:
    now = served(EAGER)
    now.prepare(build)
    assert (now.status().mode, now.status().building) == ("eager", None)
    assert words in now.status().failure


def test_a_move_to_other_hardware_is_made_once(served: Callable[..., Serving]) -> None:
    now, built = served(AOT, EAGER, AOT), []
    place = {**place_here("cpu"), "capability": "9.0"}
    for _ in range(2):
        now.move(place, lambda: built.append(1))
        until(lambda: now.status().building is None)
        assert (now.status().mode, built) == ("aot", [1])
    assert "capability: here 9.0, there None" in now.status().reason
    now.move(place_here("cpu"), lambda: built.append(2))
    assert (now.status().building, built) == (None, [1])


def named(key: str | None, *, tried: bool = True) -> Named:
    origin = Origin(key=key, reason=None if key else "there is none")
    return Named("aot" if key else "eager", NOTHING, origin, tried=tried)


def test_a_named_binary_is_tried_out_elsewhere(served: Callable[..., Serving]) -> None:
    now = served(named("k", tried=False))
    held = now.held
    assert held == Held("k", 1, untried=True)
    for other in (Held("k", 0, True), Held("another", 1, True), Held(None, 1)):
        now.opened(other, Served("eager", sought="k"), raises)
    now.opened(held, Served("eager", sought="of another place"), raises)
    assert (now.held.untried, now.status().label) == (True, "AoT")
    now.opened(held, Served("aot", "k", sought="k"), raises)
    assert (now.held.untried, now.status().label) == (False, "AoT")


def test_a_named_binary_that_cannot_be_used_is_replaced_once(
    served: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "hub_source", lambda *given, **named: Repository(False))
    now, built = served(named("k"), named(None), named("k")), []
    for _ in range(2):
        refusal = Served("eager", reason="no kernel image", sought="k")
        now.opened(now.held, refusal, lambda: built.append(1))
        until(lambda: now.status().building is None)
    assert built == [1], "and the Hub, from where it may have come, is not asked"
    assert (now.status().mode, now.held.untried) == ("eager", False)
    assert "it could not be used: no kernel image" in now.status().facts()["Why"]


def test_a_binary_that_is_there_is_not_built(served: Callable[..., Serving]) -> None:
    now = served(AOT)
    now.prepare_in_background(script("raise SystemExit('must not run')"))
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
    now.prepare_in_background(script(text))
    until(lambda: now.status().building is None)
    assert now.status().mode == "eager"
    facts = now.status().facts()
    assert facts["Build"].startswith("failed: ")
    assert reason in facts["Build"]
    assert facts["Why"] == EAGER.origin.reason  # why a build was needed is still told


def test_a_new_binary_that_is_refused(served: Callable[..., Serving]) -> None:
    now = served(EAGER, SimpleNamespace(mode="eager", origin=Origin(reason="its sha256 is wrong")))
    now.prepare_in_background(script('print(\'{"key": "k"}\')'))
    until(lambda: now.status().building is None)
    assert now.status().facts() == {
        "Runs": "PyTorch, eager",
        "Why": "no binary for this machine yet; its sha256 is wrong",
        "Build": "failed: the new binary could not be used",
    }


class Repository:
    """Stands for the Hub repository that the owner named."""

    name, repo = "Hub me/binaries", "me/binaries"

    def __init__(self, can_publish: bool, answer: str = "published to me/binaries at 1a2b3c4") -> None:
        self.can_publish = can_publish
        self.answer = answer
        self.offered: list[str] = []

    def publish(self, entry: SimpleNamespace) -> SimpleNamespace:
        self.offered.append(entry.key)
        if self.answer.startswith("not"):
            raise HubError(self.answer)
        return SimpleNamespace(text=self.answer)


def missing(*given: Any) -> SimpleNamespace:
    raise BinaryMissing("ab" * 32, "Hub me/binaries has none")


def test_a_binary_from_the_hub_is_not_built(served: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch) -> None:
    now = served(EAGER, AOT)
    monkeypatch.setattr(serving, "hub_source", lambda config, dtype, progress: Repository(True))
    now.prepare_in_background(script("raise SystemExit('must not run')"))
    until(lambda: now.status().building is None)
    assert (now.status().mode, now.status().failure, now.status().published) == ("aot", None, None)


@pytest.mark.parametrize(
    ("can_publish", "answer", "told"),
    [
        (True, "published to me/binaries at 1a2b3c4", "published to me/binaries at 1a2b3c4"),
        (True, "not published: status 403", "not published: status 403"),
        (False, "", "the new binary is not published: no write token (HF_TOKEN) is set"),
    ],
)
def test_a_new_build_is_offered_to_the_hub(
    served: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch, can_publish: bool, answer: str, told: str
) -> None:
    now, repository = served(EAGER), Repository(can_publish, answer)
    runners = iter([missing, lambda *given: AOT])
    monkeypatch.setattr(serving, "open_parts", lambda *given: next(runners)(*given))
    monkeypatch.setattr(serving, "hub_source", lambda config, dtype, progress: repository)
    monkeypatch.setattr(serving, "LocalStore", lambda: SimpleNamespace(find=lambda key: SimpleNamespace(key=key)))
    now.prepare_in_background(script('print(\'{"key": "k"}\')'))
    until(lambda: now.status().building is None)
    assert now.status().mode == "aot"
    assert now.status().build_facts()["Hub"] == now.status().as_dict()["published"] == told
    assert repository.offered == ([AOT.origin.key] if can_publish else [])


def test_what_the_hub_said_is_told_when_the_build_fails_too(
    served: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = served(EAGER)
    monkeypatch.setattr(serving, "open_parts", missing)
    monkeypatch.setattr(serving, "hub_source", lambda config, dtype, progress: Repository(True))
    now.prepare_in_background(script("raise SystemExit(3)"))
    until(lambda: now.status().building is None)
    assert now.status().facts()["Why"] == "no binary for this machine yet; Hub me/binaries has none"
    assert now.status().facts()["Build"].startswith("failed: ")


def test_a_command_that_is_not_there(served: Callable[..., Serving]) -> None:
    now = served(EAGER)
    now.prepare_in_background(["/nowhere/compile"])
    until(lambda: now.status().building is None)
    assert "exit status" in now.status().facts()["Build"]


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_binary_is_never_loaded_and_eager_serves_with_the_reason(
    cache: Path, built: Callable[[str], dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    key, reason = built("auto")["key"], DAMAGE[kind][1]
    plant(cache, key, tmp_path / "store", kind)
    loaded: list[tuple] = []
    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", lambda *arguments: loaded.append(arguments))
    monkeypatch.setenv("ONEGRAPH_CACHE", str(tmp_path / "store"))
    now = Serving(EMBEDDED)
    assert now.status().mode == "eager"
    assert reason in now.status().facts()["Why"]
    assert [found for found, why in LocalStore().quarantined() if reason in why] == [key]
    assert not loaded
    assert [len(block.frames) for block in now.pipeline.stream(Request("a red circle", 7, 1, 128, 128))] == [9]


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("exporting generate\n", "exporting generate"),
        ("x" * 300 + "\n", "x" * 200),
        ("/some/file.py:1: UserWarning: old\n", None),
        ("FutureWarning: old\n", None),
        ("/some/file.py: a word\n", None),
        ("  warnings.warn(old)\n", None),
        ("\n", None),
    ],
)
def test_the_step_of_a_build(line: str, step: str | None) -> None:
    assert step_in(line) == step


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("looked for CXX=/opt/my-gcc/bin/g++, so", "looked for CXX=…/g++, so"),
        ("the store /root/.cache/onegraph belongs to another user", "the store …/onegraph belongs to another user"),
        ("/tmp/a/b.cpp:12:3: error (in '/tmp/c/')", "…/b.cpp:12:3: error (in '…/')"),
        ("error:/tmp/a", "error:…/a"),
        ("member 'p/../../evil.so' leads out", "member 'p/../../evil.so' leads out"),
        ("https://huggingface.co/owner/name: 404", "https://huggingface.co/owner/name: 404"),
        ("owner/name, and/or 1 / 2", "owner/name, and/or 1 / 2"),
    ],
)
def test_visitors_are_not_told_where_files_lie(text: str, shown: str) -> None:
    assert without_folders(text) == shown


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_leashed_command_and_its_children_end_with_the_parent(tmp_path: Path, number: signal.Signals) -> None:
    child = "import time; print('running', flush=True); time.sleep(600)"
    command = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    parent = subprocess.Popen(
        script(
            "import subprocess, sys, time; from model.service.leash import leashed; "
            f"subprocess.Popen(leashed([sys.executable, '-c', {command!r}]), cwd=None); time.sleep(600)"
        ),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(serving.__file__).parents[2])},
        stdout=subprocess.PIPE,  # handed down to all of them: it ends when the last of them has ended
    )
    assert parent.stdout.readline() == b"running\n"
    parent.send_signal(number)
    parent.communicate(timeout=60)
