"""A real binary through a repository: built here, published, found elsewhere, proven in a child process, run."""

from __future__ import annotations

import os

import pytest
import torch
from huggingface_hub import constants

from compile_cache import hub_http, proof
from compile_cache.deadline import Limits
from compile_cache.hub import LIMITS
from compile_cache.manifest import PACKAGE
from compile_cache.sources import open_first
from tests.compile_cache.hubs import QUICK, REPO, SLACK, TOKEN, machine
from tests.compile_cache.toys import WIDTH
from tests.fixtures.fake_hub import FakeHub


@pytest.fixture
def hub(monkeypatch, toy, tmp_path):
    """A repository with the toy, published by the machine that built it."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(hub_http, "PAUSES", (0.05, 0.1))
    with FakeHub(token=TOKEN) as hub:
        hub.repos.create(REPO)
        assert machine(tmp_path / "builder", hub, token=TOKEN).hub.publish(toy.entry).outcome == "published"
        hub.log.clear()
        yield hub


@pytest.fixture
def fresh(toy, tmp_path, hub):
    """fresh(name): a machine with an empty cache that tries out what it finds."""

    def make(name: str, limits: Limits = LIMITS):
        prove = lambda package, manifest: proof.check(package, manifest, toy.calls)  # noqa: E731
        return machine(tmp_path / name, hub, prove=prove, limits=limits)

    return make


def weights_of(toy) -> dict[str, dict[str, torch.Tensor]]:
    """Copies, so that no binary opened before is handed out."""
    return {e: {n: t.detach().clone() for n, t in w.items()} for e, w in toy.weights().items()}


def serve(toy, sources):
    """Opens the first source's binary and checks what it computes; how the search went."""
    binary, answer = open_first(toy.key, sources, weights_of(toy))
    tokens = torch.arange(3) % WIDTH
    encode = next(entry.module for entry in toy.entry_points if entry.name == "encode")
    with torch.no_grad():
        torch.testing.assert_close(binary.run("encode", [tokens])[0], encode(tokens))
    return answer


def test_from_build_to_a_machine_that_is_offline(toy, hub, fresh, monkeypatch):
    one = fresh("one")
    answer = serve(toy, [one.local, one.hub])
    commit = hub.repos.get(REPO).commits[-1]
    assert [a.outcome for a in answer.tried] == ["miss", "hit"]
    assert answer.entry.source == f"Hub {REPO} at {commit[:7]}"
    assert hub.count() == 5  # three, two of which are redirected
    hub.log.clear()
    again = fresh("one")
    assert serve(toy, [again.local, again.hub]).entry.source == answer.entry.source
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert serve(toy, [again.local, again.hub]).entry.source == answer.entry.source
    assert hub.log == []


FAULTS = {
    "status 503": {"status": 503},
    "silent": {"silent": True},
    "cut": {"cut": 1000},
    "a flipped bit": {"corrupt": True},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_next_source_serves(toy, hub, fresh, fault):
    hub.fail("/blob/", **FAULTS[fault])
    one = fresh("one", QUICK if fault == "silent" else LIMITS)
    answer = serve(toy, [one.local, one.hub, toy.store])
    assert [a.outcome for a in answer.tried] == ["miss", "refused" if fault == "a flipped bit" else "error", "hit"]
    assert answer.tried[1].seconds < QUICK.download + SLACK
    assert one.local.entries() == []


def test_another_result_than_the_publishers_is_refused(toy, hub, fresh):
    """Everything about the entry is in order but what it computes."""
    path = f"{toy.key}/manifest.json"
    text = toy.entry.manifest.to_json().replace(toy.entry.manifest.reference.encode(), b"0" * 64)
    hub.repos.put(REPO, {path: text})
    one = fresh("one")
    answer = serve(toy, [one.local, one.hub, toy.store])
    assert "the trial run gives another result here than its publisher's" in answer.tried[1].reason
    assert one.local.entries() == []
    assert one.hub.refusals.all()[0][0] == toy.key
    assert os.path.basename(answer.entry.package) == PACKAGE
