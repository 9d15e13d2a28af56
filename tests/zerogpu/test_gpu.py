"""Models on "cuda", for which the CPU stands in: placed when the app is imported, packed and restored by the real
spaces code, run by workers alone. The process that serves the page names binaries and opens none.

The binary here is the CPU's under the name of the GPU's: what is tested is who finds, tries out, opens and binds it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gradio_client.exceptions import AppError

from compile_cache.key import key_of
from compile_cache.store import LocalStore
from tests.app.conftest import REPO, settled
from tests.compile_cache.hubs import Offer
from tests.fixtures.fake_hub import FakeHub
from tests.fixtures.zerogpu import mischief
from tests.fixtures.zerogpu.plans import Status
from tests.fixtures.zerogpu.scheduler import FakeScheduler
from tests.zerogpu.conftest import Zero
from tests.zerogpu.test_start import started

PROMPT = ("a red circle", 7, 2)


@pytest.fixture(scope="module")
def offer(
    cache: Path, built: Callable[[str], dict], python: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Offer:
    """The CPU's binary under the key that a Space on ZeroGPU asks for."""
    folder = tmp_path_factory.mktemp("declared")
    fields = json.loads(python("-m", "tests.fixtures.zerogpu.declared", str(folder)).splitlines()[-1])
    entry = LocalStore(cache).find(built("bfloat16")["key"])
    return Offer(replace(entry.manifest, key=key_of(fields), fields=fields), entry.package.read_bytes())


@pytest.fixture(scope="module")
def digest(python: Callable[..., str], built: Callable[[str], dict]) -> Callable[[str], str]:
    """digest(mode): of the frames that the command line makes, on the CPU."""
    built("bfloat16")
    done: dict[str, str] = {}

    def of(mode: str) -> str:
        if mode not in done:
            place = ["--mode", mode, "--precision", "bfloat16", "--device", "cpu", "--threads", "1"]
            request = [PROMPT[0], "--seed", str(PROMPT[1]), "--blocks", str(PROMPT[2])]
            done[mode] = json.loads(python("-m", "model", "generate", *request, *place, "--json"))["digest"]
        return done[mode]

    return of


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        yield hub


@pytest.fixture
def scheduler() -> Iterator[FakeScheduler]:
    return FakeScheduler()


def video(zero: Zero) -> dict[str, Any]:
    return zero.client().predict(*PROMPT, api_name="/generate")[2]


def packed(zero: Zero) -> int:
    """Bytes of the weights that the platform keeps on disk for its workers."""
    return sum(path.stat().st_size for path in (zero.app.folder / "tensors").iterdir())


def test_eager_on_the_gpu(tmp_path: Path, scheduler: FakeScheduler, digest: Callable[[str], str]) -> None:
    scheduler.plan(Status(503))  # no GPU for the build
    with started(tmp_path / "app", scheduler, gpu=True) as zero:
        report = video(zero)
        assert (report["mode"], report["digest"]) == ("eager", digest("eager"))
        assert mischief.openers(zero.app.folder) == []
        line = r"memory of the process that {} .*; weights ([\d.]+) MB, ([\d.]+) MB of them private"
        weights, private = map(float, re.findall(line.format("serves the page"), zero.app.log())[0])
        assert private == 0.0, "given to the platform, and not kept here too"
        assert weights <= packed(zero) / 1e6 < 1.1 * weights + 2, "each weight is packed once"


def test_a_binary_in_the_cache_is_named_here_and_opened_there(
    tmp_path: Path, scheduler: FakeScheduler, offer: Offer, digest: Callable[[str], str]
) -> None:
    package = tmp_path / "package.pt2"
    package.write_bytes(offer.package)
    LocalStore(tmp_path / "cache").put(offer.manifest, package)
    with started(tmp_path / "app", scheduler, gpu=True, ONEGRAPH_CACHE=str(tmp_path / "cache")) as zero:
        status = zero.client().predict(api_name="/status")
        assert (status["mode"], status["key"], scheduler.asked) == ("aot", offer.key, [])
        for _ in range(2):
            report = video(zero)
            assert (report["reason"], report["key"], report["digest"]) == (None, offer.key, digest("aot"))
        assert mischief.openers(zero.app.folder) == [scheduler.workers()[-1]]


def on_the_hub(hub: FakeHub, offer: Offer) -> dict[str, str]:
    hub.repos.create(REPO)
    hub.repos.put(REPO, offer.files())
    return {"COMPILE_CACHE_REPO": REPO, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}


def test_a_binary_from_the_hub_is_tried_out_by_the_worker(
    tmp_path: Path, scheduler: FakeScheduler, offer: Offer, digest: Callable[[str], str], hub: FakeHub
) -> None:
    with started(tmp_path / "app", scheduler, gpu=True, **on_the_hub(hub, offer)) as zero:
        status = zero.client().predict(api_name="/status")
        assert (status["mode"], scheduler.asked) == ("aot", [])
        assert status["source"].startswith(f"Hub {REPO} at ")
        seconds = []
        for _ in range(2):
            report = video(zero)
            assert (report["reason"], report["key"], report["digest"]) == (None, offer.key, digest("aot"))
            seconds.append(int(scheduler.asked[-1]["durationSeconds"]))
        assert seconds[0] - seconds[1] >= 30, "the first one has the trial run to pay for"
        assert LocalStore(zero.app.folder / "cache").find(offer.key), "the next start asks nobody"


def test_a_binary_that_fails_its_trial_run_is_replaced_once(
    tmp_path: Path, scheduler: FakeScheduler, offer: Offer, digest: Callable[[str], str], hub: FakeHub
) -> None:
    other = Offer(replace(offer.manifest, reference="0" * 64), offer.package)
    with started(tmp_path / "app", scheduler, gpu=True, **on_the_hub(hub, other)) as zero:
        mischief.plan(zero.app.folder, "memory", mischief.BUILD)
        report = video(zero)
        assert (report["mode"], report["digest"]) == ("eager", digest("eager"))
        assert "another result here than its publisher's" in report["reason"]
        status = settled(zero.app)
        assert (status["mode"], "MemoryError" in status["failure"]) == ("eager", True)
        assert video(zero)["mode"] == "eager"
        settled(zero.app)
        assert len(scheduler.asked) == 3, "two videos and one build"


def test_a_binary_whose_trial_run_kills_the_worker_is_not_tried_again(
    tmp_path: Path, scheduler: FakeScheduler, offer: Offer, hub: FakeHub
) -> None:
    with started(tmp_path / "app", scheduler, gpu=True, **on_the_hub(hub, offer)) as zero:
        mischief.plan(zero.app.folder, "kill", mischief.TRIAL, mischief.BUILD)
        with pytest.raises(AppError, match="The GPU task was ended"):
            video(zero)
        status = settled(zero.app)
        assert (status["mode"], "GPU task aborted" in status["failure"]) == ("eager", True)
        assert "its trial run ended the GPU task" in status["reason"]
        report = video(zero)
        assert (report["mode"], report["frames"]) == ("eager", 21)
        assert len(scheduler.asked) == 3, "two videos and one build"
