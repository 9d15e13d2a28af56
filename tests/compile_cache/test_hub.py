"""A repository on the Hub as a source: found, proven, kept; against a real server, with the real client."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants

from compile_cache import hub as hub_module
from compile_cache.errors import HubError, SmokeFailed, StoreError
from compile_cache.manifest import PACKAGE
from compile_cache.sources import open_first
from compile_cache.store import MANIFEST, LocalStore
from tests.compile_cache.hubs import REPO, TOKEN, Trial, line_of, machine, offer
from tests.fixtures.fake_hub import FakeHub


@pytest.fixture(scope="module")
def server():
    with FakeHub(token=TOKEN) as hub:
        yield hub


def test_found_tried_out_and_kept(hub, sound, tmp_path):
    one = machine(tmp_path / "one", hub)
    entry = one.hub.find(sound.key)
    commit = hub.repos.get(REPO).resolve("main")
    assert entry.source == f"Hub {REPO} at {commit[:7]}"
    assert entry.package.read_bytes() == sound.package
    assert one.trial.seen == [sound.package]
    assert entry.package.parent.parent.parent == one.local.root
    asked = [r.line.split("/")[-1] for r in hub.log]
    assert asked == ["main", MANIFEST, MANIFEST, PACKAGE, entry.manifest.package.sha256]  # with two redirects
    assert not [r for r in hub.log if "authorization" in r.headers]
    assert f"downloading from {REPO}: 100 % of" in one.told[-2]
    assert "trying out" in one.told[-1]
    # The next start asks nobody, and still knows where it came from.
    hub.log.clear()
    assert machine(tmp_path / "one", hub).local.find(sound.key) == entry
    assert hub.log == []


def test_not_there(hub, sound, tmp_path):
    other = offer(tmp_path, sources="2")
    assert machine(tmp_path / "one", hub).hub.find(other.key) is None
    assert hub.count() == 2


def test_offline(hub, sound, tmp_path, monkeypatch):
    machine(tmp_path / "one", hub).hub.find(sound.key)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.log.clear()
    again = machine(tmp_path / "one", hub)
    assert again.local.find(sound.key) is not None
    assert line_of(lambda: again.hub.find(sound.key)) == "HF_HUB_OFFLINE is set, so the Hub is not asked"
    assert "HF_HUB_OFFLINE is set" in line_of(lambda: again.hub.keys())
    assert hub.log == []


def test_one_commit_is_read_throughout(hub, sound, tmp_path):
    """main moves between the manifest and the package; both that are read belong together."""
    newer = offer(tmp_path, b"a newer library")
    moves = {r"revision/main": newer.files(), r"GET .*/manifest\.json": {sound.package_path: None}}
    for match, files in moves.items():
        hub.fail(match, times=1, before=lambda files=files: hub.repos.put(REPO, files))
    one = machine(tmp_path / "one", hub)
    assert one.hub.find(sound.key).package.read_bytes() in (sound.package, newer.package)
    assert len(hub.repos.get(REPO).commits) == 4
    revisions = {r.line.split("/resolve/")[1].split("/")[0] for r in hub.log if "/resolve/" in r.line}
    assert len(revisions) == 1
    assert revisions < set(hub.repos.get(REPO).commits)


def test_pages_of_a_long_list(tmp_path):
    with FakeHub(page=2) as hub:
        hub.repos.create(REPO)
        offers = [offer(tmp_path, sources=digit) for digit in "12345"]
        for made in offers:
            hub.repos.put(REPO, {**made.files(), "README.md": b"x", "other/file": b"y"})
        commit, keys = machine(tmp_path / "one", hub).hub.keys()
        assert keys == sorted(made.key for made in offers)
        assert commit == hub.repos.get(REPO).resolve("main")
        assert hub.count("/tree/") > 2


def test_the_stand_in_is_a_hub_to_huggingface_hub_too(hub, sound, tmp_path, monkeypatch):
    """Its own look-ups and downloads, which this package does not use, get the same from it."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    api = HfApi(endpoint=hub.url, token=False)
    commit = hub.repos.get(REPO).resolve("main")
    assert api.repo_info(REPO).sha == commit
    assert [item.path for item in api.list_repo_tree(REPO)] == [sound.key]
    for path, data in sound.files().items():
        for revision in ("main", commit):
            got = api.hf_hub_download(REPO, path, revision=revision, cache_dir=tmp_path / revision)
            assert Path(got).read_bytes() == data
    assert hub.count("HEAD") > 0


# -- names, variables, tokens


NOT_NAMES = ("cache", "me/cache/x", "me/../x", "https://huggingface.co/me/x", "me/ca che", "/", "a/" + "x" * 200)


@pytest.mark.parametrize("name", NOT_NAMES)
def test_what_is_no_repository(hub, tmp_path, name):
    line = line_of(lambda: machine(tmp_path / "one", hub, repo=name).hub.find("0" * 64))
    assert "is not the name of a Hub repository; it must have the form owner/name" in line
    assert hub.log == []


def test_what_is_no_key(hub, tmp_path):
    assert "is not a key" in line_of(lambda: machine(tmp_path / "one", hub).hub.find("../" * 20))
    assert hub.count("resolve") == 0


def test_from_environment(monkeypatch, store):
    monkeypatch.delenv("COMPILE_CACHE_REPO", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert hub_module.from_environment(store, Trial()) is None
    monkeypatch.setenv("COMPILE_CACHE_REPO", " ")
    assert hub_module.from_environment(store, Trial()) is None
    monkeypatch.setenv("COMPILE_CACHE_REPO", REPO)
    named = hub_module.from_environment(store, Trial())
    assert (named.name, named.repo, named.can_publish) == (f"Hub {REPO}", REPO, False)
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}\n")
    assert hub_module.from_environment(store, Trial()).can_publish
    monkeypatch.setenv("COMPILE_CACHE_REPO", "not a name")
    bad = hub_module.from_environment(store, Trial())
    binary, answer = open_first("0" * 64, [store, bad], {})
    assert binary is None
    assert "Hub not a name: error ('not a name' is not the name of a Hub repository" in answer.reason


def test_a_token_is_sent_only_where_it_is_needed(hub, sound, tmp_path):
    machine(tmp_path / "one", hub, token="hf_wrong").hub.find(sound.key)
    assert not [r for r in hub.log if "authorization" in r.headers]
    hub.repos.get(REPO).private = True
    hub.log.clear()
    assert "does not exist, or it is private" in line_of(lambda: machine(tmp_path / "two", hub).hub.find(sound.key))
    line = line_of(lambda: machine(tmp_path / "two", hub, token="hf_wrong").hub.find(sound.key))
    assert "or the token is not valid" in line
    hub.log.clear()
    assert machine(tmp_path / "two", hub, token=TOKEN).hub.find(sound.key) is not None
    with_token = [r for r in hub.log if r.headers.get("authorization") == f"Bearer {TOKEN}"]
    assert {f"http://{r.host}" for r in with_token} == {hub.url}  # not to where the packages are
    assert hub.count(r"/blob/") == 1


@pytest.mark.parametrize("token", ["hf_two words", "hf_zwei\nzeilen", "hf_ünicode", "\x07hf"])
def test_a_token_that_cannot_be_sent_is_not_shown(hub, sound, tmp_path, token):
    hub.repos.get(REPO).private = True
    line = line_of(lambda: machine(tmp_path / "one", hub, token=token).hub.find(sound.key))
    assert line == "the token is not one word of printable ASCII characters"


# -- the trial run, the cache, other processes


def test_what_fails_its_trial_run_is_not_fetched_again(hub, sound, tmp_path):
    def fail() -> None:
        raise SmokeFailed("the trial run died of SIGSEGV")

    one = machine(tmp_path / "one", hub, prove=Trial(fail))
    assert line_of(lambda: one.hub.find(sound.key)) == "the trial run died of SIGSEGV"
    assert one.local.entries() == []
    hub.log.clear()
    again = machine(tmp_path / "one", hub)
    assert "died of SIGSEGV (refused before" in line_of(lambda: again.hub.find(sound.key))
    assert hub.count() == 1
    hub.repos.put(REPO, {"README.md": b"something else changes"})
    hub.log.clear()
    for requests in (5, 1):  # looked at once more, but the package itself is not downloaded
        assert "refused before" in line_of(lambda: again.hub.find(sound.key))
        assert hub.count() == requests
        hub.log.clear()
    newer = offer(tmp_path, b"a newer library")
    hub.repos.put(REPO, newer.files())
    assert again.hub.find(sound.key).package.read_bytes() == newer.package
    assert again.hub.refusals.all() == []


@pytest.mark.parametrize("error", [StoreError("no room to try it out"), ValueError("a mistake in the caller's code")])
def test_a_trial_run_that_could_not_be_made_says_nothing_against_the_package(hub, sound, tmp_path, error):
    def fail() -> None:
        raise error

    one = machine(tmp_path / "one", hub, prove=Trial(fail))
    assert str(error) in line_of(lambda: one.hub.find(sound.key))
    assert one.hub.refusals.all() == []


def test_what_does_not_load_is_rejected_and_not_fetched_again(hub, sound, tmp_path):
    """The members and the trial run are in order here, but the library is none."""
    one = machine(tmp_path / "one", hub)
    binary, answer = open_first(sound.key, [one.local, one.hub], {})
    assert binary is None
    assert [a.outcome for a in answer.tried] == ["miss", "refused"]
    assert "does not load" in answer.reason
    assert one.local.entries() == []
    hub.log.clear()
    binary, answer = open_first(sound.key, [one.local, machine(tmp_path / "one", hub).hub], {})
    assert "does not load" in answer.reason
    assert "refused before" in answer.reason
    assert hub.count() == 1


def test_served_from_a_private_folder_where_it_cannot_be_kept(hub, sound, tmp_path, monkeypatch):
    one = machine(tmp_path / "one", hub)

    def full(manifest, package, origin):
        raise StoreError("cannot store the binary: No space left on device")

    monkeypatch.setattr(one.local, "put", full)
    entry = one.hub.find(sound.key)
    assert entry.package.read_bytes() == sound.package
    assert "not kept here: cannot store the binary: No space left on device" in entry.source
    assert "No space left" in one.told[-1]


def test_another_process_of_this_machine_was_first(hub, sound, tmp_path):
    other = offer(tmp_path, b"built here meanwhile")
    one = machine(tmp_path / "one", hub, prove=Trial(lambda: other.put(LocalStore(tmp_path / "one"), tmp_path)))
    entry = one.hub.find(sound.key)
    assert entry.package.read_bytes() == other.package
    assert entry.source == "local cache"


def test_an_origin_that_is_not_about_this_package_is_not_believed(hub, sound, tmp_path):
    one = machine(tmp_path / "one", hub)
    note = one.hub.find(sound.key).package.with_name("origin.json")
    data = json.loads(note.read_text())
    for change in ({"sha256": "0" * 64}, {"repo": "<script>"}, {"commit": "x"}, {"extra": 1}, {"repo": None}):
        note.write_text(json.dumps({**data, **change}))
        assert one.local.find(sound.key).source == "local cache"
    note.write_text("[" * 5000)
    assert one.local.find(sound.key).source == "local cache"


# -- pulled ahead


def test_pulled_ahead_and_tried_out_when_it_is_used(hub, sound, tmp_path, monkeypatch):
    one = machine(tmp_path / "one", hub)
    assert one.hub.pull(sound.key).source.startswith(f"Hub {REPO} at ")
    assert (one.trial.seen, one.local.entries()) == ([], [])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.log.clear()
    assert machine(tmp_path / "one", hub, repo="other/repo").hub.name == "Hub other/repo"
    assert line_of(lambda: machine(tmp_path / "one", hub, repo="other/repo").hub.find(sound.key))
    entry = one.hub.find(sound.key)
    assert entry.source.startswith(f"Hub {REPO} at ")
    assert one.trial.seen == [sound.package]
    assert one.local.entries() == [sound.key]
    assert LocalStore(one.local.root / "pulled").entries() == []
    assert hub.log == []


def test_pulled_but_no_good(hub, sound, tmp_path):
    def fail() -> None:
        raise SmokeFailed("the trial run died of SIGSEGV")

    one = machine(tmp_path / "one", hub, prove=Trial(fail))
    one.hub.pull(sound.key)
    assert "SIGSEGV" in line_of(lambda: one.hub.find(sound.key))
    assert "refused before" in line_of(lambda: one.hub.find(sound.key))
    assert "refused before" in line_of(lambda: one.hub.pull(sound.key, anew=False))
    two = machine(tmp_path / "two", hub)
    two.hub.pull(sound.key).package.write_bytes(b"damaged meanwhile")
    assert two.hub.find(sound.key).package.read_bytes() == sound.package


def test_manifest_and_unknown_keys(hub, sound, tmp_path):
    one = machine(tmp_path / "one", hub)
    assert one.hub.manifest(sound.key) == sound.manifest
    assert one.hub.manifest("0" * 64) is None
    assert one.hub.pull("0" * 64) is None
    with pytest.raises(HubError, match="does not exist"):
        machine(tmp_path / "two", hub, repo="me/other").hub.keys()
