"""What a start does on ZeroGPU: no GPU call where there is a binary; else one that compiles, and eager with the reason
if it fails."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.app.conftest import BUILD_SECONDS, stop_app, wait_for
from tests.fixtures.zerogpu import mischief
from tests.fixtures.zerogpu.plans import Plan, Quota, Status
from tests.fixtures.zerogpu.scheduler import FakeScheduler
from tests.zerogpu.conftest import Zero, start_zero
from tests.zerogpu.test_workers import generate


@contextmanager
def started(folder: Path, scheduler: FakeScheduler, **options: Any) -> Iterator[Zero]:
    with scheduler:
        zero = start_zero(folder, scheduler, **options)
        try:
            yield zero
        finally:
            stop_app(zero.app)
            wait_for("no worker outlives the app", lambda: not zero.app.family())


def serves_eager(zero: Zero, why: str, failed: str) -> None:
    status = zero.client().predict(api_name="/status")
    assert (status["mode"], status["building"]) == ("eager", None)
    assert why in status["reason"]
    assert failed in status["failure"]
    _, _, report = generate(zero, 1)
    assert (report["mode"], report["frames"]) == ("eager", 9)
    zero.settled()


def test_with_a_binary_no_gpu_is_asked_for(tmp_path: Path, cache: Path, built: Callable[[str], dict]) -> None:
    built("auto")
    with started(tmp_path / "app", FakeScheduler(), ONEGRAPH_CACHE=str(cache)) as zero:
        assert zero.scheduler.startups == 1
        assert zero.scheduler.asked == []
        assert zero.client().predict(api_name="/status")["mode"] == "aot"


LONG = "2250"  # 1500 s, by the hardware's factor


@pytest.mark.parametrize(
    ("plans", "asked", "words"),
    [
        ([Quota(0, 3600)], [LONG], "ZeroGPU quota exceeded: "),
        ([Status(500)], [LONG], "500 (Internal Server Error)"),
        ([Quota(60, -1)] * 2, [LONG, "300"], "of 1500 s for it is not allowed; a GPU task of 200 s"),
    ],
    ids=["quota", "broken scheduler", "too long, twice"],
)
def test_a_refused_warm_up_serves_eager(tmp_path: Path, plans: list[Plan], asked: list[str], words: str) -> None:
    scheduler = FakeScheduler()
    scheduler.plan(*plans)
    with started(tmp_path / "app", scheduler) as zero:
        assert [one["durationSeconds"] for one in scheduler.asked] == asked
        serves_eager(zero, "local cache has none", words)


@pytest.mark.parametrize(("kind", "words"), [("kill", "GPU task aborted"), ("memory", "MemoryError")])
def test_a_warm_up_that_dies_serves_eager(tmp_path: Path, kind: str, words: str) -> None:
    (tmp_path / "app").mkdir()
    mischief.plan(tmp_path / "app", kind, mischief.BUILD)
    with started(tmp_path / "app", FakeScheduler()) as zero:
        serves_eager(zero, "local cache has none", words)


def test_a_corrupt_binary_is_passed_over(tmp_path: Path, cache: Path, built: Callable[[str], dict]) -> None:
    key = built("auto")["key"]
    shutil.copytree(cache / "v1" / key, tmp_path / "cache" / "v1" / key)
    package = tmp_path / "cache" / "v1" / key / "package.pt2"
    package.write_bytes(package.read_bytes()[:-1])
    scheduler = FakeScheduler()
    scheduler.plan(Status(503))
    with started(tmp_path / "app", scheduler, ONEGRAPH_CACHE=str(tmp_path / "cache")) as zero:
        serves_eager(zero, "the manifest says", "No GPU was available")


def test_from_nothing_to_frames(tmp_path: Path, python: Callable[..., str]) -> None:
    """Start, compile in a forked worker, pack, report, launch; then videos from a worker that opens nothing."""
    with started(tmp_path / "app", FakeScheduler(), patience=BUILD_SECONDS) as zero:
        (warm_up,) = zero.scheduler.grants
        assert (warm_up.seconds, warm_up.released, warm_up.failed) == (2250, True, False)
        status = zero.client().predict(api_name="/status")
        assert (status["mode"], status["failure"]) == ("aot", None)
        wait_for("the compiler's worker is gone", lambda: not Path(f"/proc/{warm_up.pid}").exists())
        digests = [
            zero.client(user).predict(prompt, 7, 2, api_name="/generate")[2]["digest"]
            for user, prompt in ((None, "a red circle"), ("ada", "a blue star"))
        ]
        own = {"ONEGRAPH_CACHE": str(zero.app.folder / "cache")}
        for prompt, digest in zip(("a red circle", "a blue star"), digests, strict=True):
            plain = json.loads(
                python("-m", "model", "generate", prompt, "--seed", "7", "--blocks", "2", "--json", **own)
            )
            assert (plain["mode"], plain["digest"]) == ("aot", digest)
        assert len(set(zero.scheduler.workers()[1:])) == 1
        assert mischief.openers(zero.app.folder) == [zero.app.process.pid]
        zero.settled()
        assert [path.name for path in (zero.app.folder / "tmp").iterdir() if path.name.startswith("onegraph")] == []
