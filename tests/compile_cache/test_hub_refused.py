"""What a repository may offer and must be refused: each before a byte of it is executed, with its reason, and once.

The library in every package here leaves a mark as soon as it is loaded, wherever that is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compile_cache import hub_repo
from compile_cache.errors import PackageRefused, TrialUnfinished
from compile_cache.manifest import FileRecord
from compile_cache.pins import Pins
from compile_cache.sources import open_first
from tests.compile_cache import evil
from tests.compile_cache.hubs import REPO, Next, Trial, machine, offer


@pytest.fixture(scope="module")
def tripwire(tmp_path_factory) -> tuple[bytes, Path]:
    return evil.tripwire(tmp_path_factory.mktemp("tripwire"))


@pytest.mark.parametrize("case", evil.CASES)
def test_refused_before_anything_is_executed(hub, tmp_path, tripwire, case):
    library, mark = tripwire
    made = offer(tmp_path, library)
    reason = evil.plan(case, hub, made, tmp_path)
    one, after = machine(tmp_path / "one", hub), Next()
    binary, answer = open_first(made.key, [one.local, one.hub, after], {})
    assert binary is None
    assert [a.outcome for a in answer.tried] == ["miss", "refused", "miss"]
    assert reason in answer.tried[1].reason
    assert answer.reason.isprintable()
    assert len(answer.reason) < 2200
    assert after.asked == 1
    assert one.trial.seen == []
    assert one.local.entries() == []
    assert not mark.exists()
    # The next start does not download it again; once something else stands there, it does.
    hub.log.clear()
    again = machine(tmp_path / "one", hub)
    _, answer = open_first(made.key, [again.local, again.hub], {})
    assert reason in answer.tried[1].reason
    assert hub.count("/blob/") == 0
    hub.heal()
    good = offer(tmp_path, b"a sound one")
    hub.repos.put(REPO, good.files())
    assert again.hub.find(good.key).package.read_bytes() == good.package


def test_more_than_the_manifest_says_is_not_written(hub, tmp_path, monkeypatch):
    made, written = offer(tmp_path), []
    hub.repos.put(REPO, made.files())
    hub.repos.blobs[made.manifest.package.sha256] = made.package + bytes(4 * 2**20)
    write = hub_repo._File.write
    monkeypatch.setattr(hub_repo._File, "write", lambda file, data: (written.append(len(data)), write(file, data)))
    with pytest.raises(PackageRefused, match=f"arrived with more than {len(made.package)} bytes"):
        machine(tmp_path / "one", hub).hub.find(made.key)
    assert sum(written) <= len(made.package)


def test_refused_for_a_pin(hub, tmp_path, tripwire):
    library, mark = tripwire
    made = offer(tmp_path, library)
    hub.repos.put(REPO, made.files())
    one, after = machine(tmp_path / "one", hub, pins=Pins({made.key: "0" * 64})), Next()
    _, answer = open_first(made.key, [one.local, one.hub, after], {})
    assert "pinned to the package 000000000000…" in answer.tried[1].reason
    assert (after.asked, one.trial.seen, hub.count("/blob/"), mark.exists()) == (1, [], 0, False)


def test_damaged_once_on_the_way(hub, tmp_path):
    """The Hub itself says that the package is sound, so it is fetched once more."""
    made = offer(tmp_path)
    hub.repos.put(REPO, made.files())
    hub.fail("/blob/", times=1, corrupt=True)
    assert machine(tmp_path / "one", hub).hub.find(made.key).package.read_bytes() == made.package
    assert hub.count("/blob/") == 2


def unfinished():
    raise TrialUnfinished("the trial run died of SIGKILL")


def test_a_trial_run_that_was_ended_from_outside_is_made_again(hub, tmp_path):
    made = offer(tmp_path)
    hub.repos.put(REPO, made.files())
    one = machine(tmp_path / "one", hub, prove=Trial(unfinished))
    _, answer = open_first(made.key, [one.hub], {})
    assert answer.reason == f"Hub {REPO}: error (the trial run died of SIGKILL)"
    assert machine(tmp_path / "one", hub).hub.find(made.key) is not None


def test_the_tripwire_works(hub, tmp_path, tripwire):
    """Offered soundly, and let through by the trial run, the same library is loaded and leaves its mark."""
    library, mark = tripwire
    made = offer(tmp_path, library)
    hub.repos.put(REPO, made.files())
    one = machine(tmp_path / "one", hub)
    binary, answer = open_first(made.key, [one.local, one.hub], {})
    assert binary is None
    assert "does not load" in answer.reason
    assert one.trial.seen == [made.package]
    assert mark.exists()
    mark.unlink()
    assert made.manifest.package == FileRecord(len(made.package), made.manifest.package.sha256)
