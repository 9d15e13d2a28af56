"""Workers that run on other hardware than the platform declares: that request is served eagerly and says why, the right
binary comes next, and where there is none, it is looked for once."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from compile_cache.key import key_of
from compile_cache.store import LocalStore
from tests.app.conftest import REPO, settled, stop_app, visit, wait_for
from tests.app.test_why import panel
from tests.compile_cache.hubs import Offer
from tests.fixtures.fake_hub import FakeHub
from tests.fixtures.zerogpu import mischief
from tests.fixtures.zerogpu.plans import Quota
from tests.fixtures.zerogpu.scheduler import FakeScheduler
from tests.zerogpu.conftest import Zero, start_zero, token
from tests.zerogpu.test_workers import generate


def made_for(cache: Path, key: str, level: str) -> Offer:
    """The binary `key`, as if it were the one that is made for another vector level."""
    entry = LocalStore(cache).find(key)
    place = entry.manifest.fields["environment"]
    fields = {**entry.manifest.fields, "environment": place | {"cpu": place["cpu"] | {"vector": level}}}
    return Offer(replace(entry.manifest, key=key_of(fields), fields=fields), entry.package.read_bytes())


def test_a_wrong_declaration(
    tmp_path: Path, cache: Path, built: Callable[[str], dict], browser: Browser, hub: FakeHub
) -> None:
    declared = built("auto")["key"]
    right = made_for(cache, declared, "avx9")
    hub.repos.create(REPO)
    hub.repos.put(REPO, right.files())
    shutil.copytree(cache / "v1" / declared, tmp_path / "cache" / "v1" / declared)
    where = {"COMPILE_CACHE_REPO": REPO, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
    with FakeScheduler() as scheduler:
        zero = start_zero(tmp_path / "app", scheduler, ONEGRAPH_CACHE=str(tmp_path / "cache"), **where)
        try:
            page = visit(browser, zero.app.url)
            assert (scheduler.asked, settled(zero.app)["key"]) == ([], declared)
            plain = generate(zero, 2)[2]
            assert (plain["mode"], plain["key"]) == ("aot", declared)
            nothing_to_be_had(zero, page)
            the_right_one_comes(zero, declared, right.key, plain["digest"])
        finally:
            stop_app(zero.app)
            wait_for("no worker outlives the app", lambda: not zero.app.family())


def moved(zero: Zero, level: str) -> None:
    """From now on, workers are new ones, and run there."""
    worker = zero.scheduler.workers()[-1]
    os.kill(worker, signal.SIGKILL)
    wait_for("the worker is gone", lambda: not Path(f"/proc/{worker}").exists())
    mischief.move(zero.app.folder, level)
    zero.scheduler.reset()


def nothing_to_be_had(zero: Zero, page: Page) -> None:
    """The Hub has none for what the worker found, a task as long as at the start is not allowed to build it, and in a
    shorter one that fails: no request tries that again, and no visitor is charged."""
    moved(zero, "avx8")
    mischief.plan(zero.app.folder, "memory", mischief.BUILD)
    zero.scheduler.plan(None, Quota(60, -1))
    for _ in range(2):
        _, _, report = zero.client("ada").predict("a red circle", 7, 2, api_name="/generate")
        assert (report["mode"], report["frames"]) == ("eager", 21)
        assert "the hardware is not what was declared (cpu.vector: here avx8, there " in report["reason"]
        now = settled(zero.app)
        words = (
            "a GPU task of 1500 s for it is not allowed; the GPU task for it failed: ZeroGPU worker error: MemoryError"
        )
        assert (now["mode"], now["failure"]) == ("eager", words)
        assert report["reason"] in now["reason"]
    asked = [(one["durationSeconds"], one.get("token")) for one in zero.scheduler.asked]
    assert asked[1:3] == [("2250", None), ("300", None)], "seconds of quota"
    assert [user for _, user in asked] == [token("ada"), None, None, token("ada")], "two videos and one build"
    page.reload()
    expect(page.locator(".badge")).to_have_text("eager")
    assert "not what was declared" in panel(page)["Why"]


def the_right_one_comes(zero: Zero, declared: str, right: str, digest: str) -> None:
    """Workers move on: eager once more, then the Hub's binary; and back on the declared hardware, the declared one."""
    moved(zero, "avx9")
    before = generate(zero, 2)[2]
    assert (before["mode"], settled(zero.app)["key"]) == ("eager", right)
    for _ in range(2):
        after = generate(zero, 2)[2]
        assert (after["mode"], after["key"], after["digest"]) == ("aot", right, digest)
    assert len(zero.scheduler.asked) == 3, "nothing was built"
    moved(zero, "avx9")
    zero.clear()
    back = generate(zero, 2)[2]
    assert (back["mode"], back["key"], back["digest"]) == ("aot", declared, digest)
    assert settled(zero.app)["key"] == right
