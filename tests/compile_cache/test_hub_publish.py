"""Publishing: one commit, first come first served, whatever goes wrong in between."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from compile_cache import hub_http
from compile_cache.manifest import PACKAGE
from compile_cache.store import MANIFEST
from tests.compile_cache.hubs import REPO, TOKEN, Offer, line_of, machine, offer, settle
from tests.fixtures.fake_hub import FakeHub

fork = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def client(monkeypatch, tmp_path):
    """huggingface_hub on plain LFS, silent, and without anything of this machine's user."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    # It asks some questions six times, over 23 seconds; here without the seconds.
    monkeypatch.setattr("huggingface_hub.utils._http.time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(hub_http, "PAUSES", (0.05, 0.1))


@pytest.fixture(scope="module")
def server():
    with FakeHub(token=TOKEN) as hub:
        yield hub


@pytest.fixture
def hub(server):
    server.reset(REPO)
    yield server
    server.heal()
    settle()  # a publisher left behind must not publish into the next test


def commits(hub: FakeHub) -> int:
    return len(hub.repos.get(REPO).commits) - 1


def check_whole(hub: FakeHub) -> None:
    """At no commit was there ever half an entry."""
    for tree in hub.repos.get(REPO).trees.values():
        keys = Counter(path.partition("/")[0] for path in tree)
        assert all(count == 2 for count in keys.values())
        assert {path.partition("/")[2] for path in tree} <= {MANIFEST, PACKAGE}


def builder(tmp_path: Path, hub: FakeHub, made: Offer, name: str = "builder", **settings):
    """A machine that has built an entry; (machine, its entry)."""
    one = machine(tmp_path / name, hub, token=TOKEN, **settings)
    return one, made.put(one.local, tmp_path)


def test_published_and_found_by_everybody(hub, tmp_path):
    made = offer(tmp_path)
    one, entry = builder(tmp_path, hub, made)
    done = one.hub.publish(entry)
    tip = hub.repos.get(REPO).resolve("main")
    assert (done.outcome, done.commit, done.text) == ("published", tip, f"published to {REPO} at {tip[:7]}")
    assert commits(hub) == 1
    assert hub.count("POST .*/commit/main") == 1
    check_whole(hub)
    other = machine(tmp_path / "other", hub)
    assert other.hub.find(made.key).package.read_bytes() == made.package
    assert other.hub.manifest(made.key) == made.manifest


def test_through_xet(tmp_path, monkeypatch):
    """The large file goes into an hf_xet store (a folder here), and comes back over plain HTTP, as from the Hub."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    with FakeHub(token=TOKEN, xet=tmp_path / "cas") as hub:
        hub.repos.create(REPO)
        made = offer(tmp_path, os.urandom(200_000))
        one, entry = builder(tmp_path, hub, made)
        assert one.hub.publish(entry).outcome == "published"
        assert hub.count("xet-write-token") == 1
        assert hub.count("lfs/objects") == hub.count("PUT") == 0
        assert hub.repos.blobs == {}
        assert machine(tmp_path / "other", hub).hub.find(made.key).package.read_bytes() == made.package
        assert one.hub.publish(entry).outcome == "identical"


def test_without_a_token(hub, tmp_path):
    made = offer(tmp_path)
    one = machine(tmp_path / "one", hub)
    assert not one.hub.can_publish
    entry = made.put(one.local, tmp_path)
    assert line_of(lambda: one.hub.publish(entry)) == "there is no token (HF_TOKEN), so nothing is published"
    assert hub.log == []


def test_identical_content_makes_no_commit(hub, tmp_path):
    made = offer(tmp_path)
    for name in ("one", "two", "two"):
        one, entry = builder(tmp_path, hub, made, name)
        done = one.hub.publish(entry)
    assert done.outcome == "identical"
    assert "nothing was committed" in done.text
    assert commits(hub) == 1
    assert hub.count("POST") == 3  # of the first


def test_another_build_of_the_same_key_stays(hub, tmp_path):
    first, second = offer(tmp_path, b"first"), offer(tmp_path, b"second")
    assert first.key == second.key
    hub.repos.put(REPO, first.files())
    one, entry = builder(tmp_path, hub, second)
    done = one.hub.publish(entry)
    assert done.outcome == "theirs"
    assert f"{REPO} has another build of this key already (by tests, 2026-01-31T12:00:00Z); it stays" in done.text
    assert commits(hub) == 1
    assert one.local.find(second.key).package.read_bytes() == second.package  # serves on


BROKEN = {
    "no manifest": {MANIFEST: None},
    "no package": {PACKAGE: None},
    "an unreadable manifest": {MANIFEST: b"{"},
    "another package": {PACKAGE: b"PK\0 another package"},
    "nothing of use": {MANIFEST: b"", PACKAGE: b""},
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_nobody_could_use_is_replaced(hub, tmp_path, case):
    first, second = offer(tmp_path, b"first"), offer(tmp_path, b"second")
    files = {**first.files(), **{f"{first.key}/{name}": data for name, data in BROKEN[case].items()}}
    hub.repos.put(REPO, files)
    one, entry = builder(tmp_path, hub, second)
    done = one.hub.publish(entry)
    assert done.outcome == ("published" if case == "no manifest" else "replaced")
    assert machine(tmp_path / "other", hub).hub.find(first.key).package.read_bytes() == second.package


def test_412_with_the_key_taken_meanwhile(hub, tmp_path):
    first, second = offer(tmp_path, b"first"), offer(tmp_path, b"second")
    hub.fail("POST .*/commit/", times=1, before=lambda: hub.repos.put(REPO, first.files()))
    one, entry = builder(tmp_path, hub, second)
    assert one.hub.publish(entry).outcome == "theirs"
    assert hub.count("POST .*/commit/") == 1
    assert commits(hub) == 1
    check_whole(hub)


def test_412_with_something_else_committed_meanwhile(hub, tmp_path):
    others = [offer(tmp_path, sources=digit) for digit in "23"]
    for made in others:
        hub.fail("POST .*/commit/", times=1, before=lambda made=made: hub.repos.put(REPO, made.files()))
    one, entry = builder(tmp_path, hub, offer(tmp_path))
    assert one.hub.publish(entry).outcome == "published"
    assert hub.count("POST .*/commit/") == 3
    assert sorted(one.hub.keys()[1]) == sorted([entry.key, *(made.key for made in others)])
    check_whole(hub)


@pytest.mark.parametrize("step", ["ask how", "batch", "commit"])
@pytest.mark.parametrize("spoiled", [False, True])
def test_the_same_package_committed_meanwhile(hub, tmp_path, spoiled, step):
    """After our look at the tip. Where the client asks later than that which files are new, it commits nothing, and
    does not say so."""
    made = offer(tmp_path)
    if spoiled:
        hub.repos.put(REPO, {**made.files(), made.manifest_path: b"{"})
    before = commits(hub)
    hub.fail(f"POST .*{STEPS[step]}", times=1, before=lambda: hub.repos.put(REPO, made.files()))
    one, entry = builder(tmp_path, hub, made)
    done = one.hub.publish(entry)
    theirs = hub.repos.get(REPO).commits[-1]
    assert (done.outcome, done.commit, commits(hub)) == ("identical", theirs, before + 1)
    assert "nothing was committed" in done.text
    assert hub.count("POST .*/commit/") == (step != "ask how")


def test_what_is_there_but_not_given_out(hub, tmp_path):
    """The client finds that no file has changed, although we could not read what is there: nothing is replaced."""
    made = offer(tmp_path)
    tip = hub.repos.put(REPO, made.files())
    hub.fail(f"GET .*/{tip}/{made.manifest_path}", replace=b"{")
    one, entry = builder(tmp_path, hub, made)
    line = line_of(lambda: one.hub.publish(entry))
    assert line.startswith(f"not published: {REPO} has this package already, but does not give it out: ")
    assert commits(hub) == 1


def test_412_for_ever(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    hub.fail("POST .*/commit/", status=412)
    one, entry = builder(tmp_path, hub, offer(tmp_path))
    assert line_of(lambda: one.hub.publish(entry)) == (
        f"not published: in 20 tries, {REPO} was changed each time in between"
    )


STEPS = {"look": "/revision/main", "ask how": "/preupload/", "batch": "/objects/batch", "commit": "/commit/"}
REFUSED = {401: "or it is private, or the token is not valid", 403: "no access", 404: "the Hub answered 404"}
REFUSED |= {429: "too many requests", 500: "internal server error", 503: "service unavailable"}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("status", REFUSED)
def test_refused(hub, tmp_path, status, step):
    hub.fail(STEPS[step], status=status)
    one, entry = builder(tmp_path, hub, offer(tmp_path))
    line = line_of(lambda: one.hub.publish(entry))
    assert line.startswith("not published: the Hub answered")
    assert REFUSED[status] in line
    assert commits(hub) == 0


def test_the_repository_is_not_made_for_anybody(hub, tmp_path):
    one, entry = builder(tmp_path, hub, offer(tmp_path), repo="me/elsewhere")
    assert "there is no such repository" in line_of(lambda: one.hub.publish(entry))
    assert hub.repos.get("me/elsewhere") is None
    assert hub.count("create") == 0


def test_a_token_that_may_not_write(tmp_path):
    with FakeHub(token="another") as hub:
        hub.repos.create(REPO)
        one, entry = builder(tmp_path, hub, offer(tmp_path))
        line = line_of(lambda: one.hub.publish(entry))
        assert f"the token must be allowed to write to {REPO}, which must exist" in line


@pytest.mark.parametrize("step", ["/preupload/", "PUT /upload/", "/commit/"])
def test_silent(hub, tmp_path, step):
    hub.fail(step, silent=True)
    one, entry = builder(tmp_path, hub, offer(tmp_path), publish_seconds=0.7)
    began = time.monotonic()
    assert line_of(lambda: one.hub.publish(entry)) == "not published: no answer within 0.7 s"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("step", ["/preupload/", "/objects/batch", "/commit/"])
def test_disconnected(hub, tmp_path, step):
    hub.fail(step, cut=5)
    one, entry = builder(tmp_path, hub, offer(tmp_path))
    assert line_of(lambda: one.hub.publish(entry)).startswith("not published: the connection to the Hub broke off (")


def test_not_reachable_and_offline(hub, tmp_path, monkeypatch):
    one, entry = builder(tmp_path, hub, offer(tmp_path), endpoint="http://127.0.0.1:9")
    assert line_of(lambda: one.hub.publish(entry)).startswith("not published: the Hub cannot be reached")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    one, entry = builder(tmp_path, hub, offer(tmp_path))
    assert line_of(lambda: one.hub.publish(entry)) == "not published: HF_HUB_OFFLINE is set, so the Hub is not asked"


# -- six at once


def _build_and_publish(barrier, queue, folder: Path, url: str, made: Offer) -> None:
    one = machine(folder / "cache", url, token=TOKEN)
    entry = made.put(one.local, folder)
    barrier.wait(120)
    done = one.hub.publish(entry)
    # Everybody serves: from its own cache.
    assert one.local.find(made.key).package.read_bytes() == made.package
    queue.put((done.outcome, done.commit, made.package))


@pytest.mark.parametrize("same", [False, True])
def test_six_builders_finish_at_once(hub, tmp_path, same):
    barrier, queue = fork.Barrier(6), fork.SimpleQueue()
    builds = [offer(tmp_path)] * 6 if same else [offer(tmp_path, b"build %d" % number) for number in range(6)]
    children = []
    for number, made in enumerate(builds):
        folder = tmp_path / str(number)
        folder.mkdir()
        children.append(fork.Process(target=_build_and_publish, args=(barrier, queue, folder, hub.url, made)))
    settle()
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0] * 6
    results = [queue.get() for _ in range(6)]
    assert Counter(outcome for outcome, _, _ in results) == {"published": 1, "identical" if same else "theirs": 5}
    assert commits(hub) == 1
    check_whole(hub)
    [(_, commit, winner)] = [result for result in results if result[0] == "published"]
    assert {commit for _, commit, _ in results} == {commit}
    assert machine(tmp_path / "seventh", hub).hub.find(builds[0].key).package.read_bytes() == winner


def test_six_builders_of_six_keys(hub, tmp_path):
    """None of them gets lost, although all commit on the same tip."""
    barrier, queue = fork.Barrier(6), fork.SimpleQueue()

    def work(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        made = offer(folder, sources=str(number + 1))
        one = machine(folder / "cache", hub.url, token=TOKEN)
        entry = made.put(one.local, folder)
        barrier.wait(120)
        queue.put(one.hub.publish(entry).outcome)

    children = [fork.Process(target=work, args=(n,)) for n in range(6)]
    settle()
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [queue.get() for _ in range(6)] == ["published"] * 6
    assert len(machine(tmp_path / "seventh", hub).hub.keys()[1]) == 6
    assert commits(hub) == 6
    check_whole(hub)
