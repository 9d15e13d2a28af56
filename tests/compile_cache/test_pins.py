"""Pins: where a key is pinned only that content is taken, and pins that cannot be read let nothing pass."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from compile_cache.errors import PackageRefused
from compile_cache.pins import Pinned, Pins
from compile_cache.store import LocalStore
from tests.compile_cache.hubs import line_of, machine, offer


def test_what_is_bound_to_a_package_is_pinned_with_it(toy):
    """Tensors that the graph spells out are in the manifest, and decide what is computed."""
    manifest = toy.entry.manifest
    [(name, literal)] = manifest.literals["rollout"].items()
    other = {"rollout": {name: replace(literal, values=(0.25, -0.25))}, "encode": {}}
    changed = replace(manifest, literals=other)
    assert changed.package == manifest.package
    assert len({manifest.content, changed.content, manifest.package.sha256}) == 3
    assert replace(manifest, literals={"rollout": {}, "encode": {}}).content == manifest.package.sha256
    Pins({manifest.key: manifest.content}).check(manifest.key, manifest.content)
    with pytest.raises(PackageRefused, match="pinned"):
        Pins({manifest.key: manifest.content}).check(manifest.key, changed.content)


def write_pins(path, pins) -> Pins:
    path.write_text(pins if isinstance(pins, str) else json.dumps(pins))
    return Pins.read(path)


def test_a_pinned_key_takes_only_that_content(hub, sound, tmp_path):
    other = offer(tmp_path, b"other")
    path = tmp_path / "pins.json"
    good = write_pins(path, {sound.key: sound.manifest.package.sha256, "0" * 64: "1" * 64})
    bad = write_pins(path, {sound.key: other.manifest.package.sha256})
    refused = machine(tmp_path / "one", hub, pins=bad)
    with pytest.raises(PackageRefused, match="the key is pinned to the package"):
        refused.hub.find(sound.key)
    assert refused.trial.seen == []
    assert hub.count("/blob/") == 0
    # Not remembered: the pins may be the wrong ones.
    assert machine(tmp_path / "one", hub, pins=good).hub.find(sound.key) is not None
    # Once it is in the cache, pins count too; but not for what was built here.
    assert Pinned(LocalStore(tmp_path / "one"), good).find(sound.key) is not None
    with pytest.raises(PackageRefused, match="pinned"):
        Pinned(LocalStore(tmp_path / "one"), bad).find(sound.key)
    assert "pinned" in LocalStore(tmp_path / "one").quarantined()[0][1]
    built = machine(tmp_path / "two", hub)
    sound.put(built.local, tmp_path)
    assert Pinned(built.local, bad).find(sound.key) is not None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "not a JSON object"),
        ("{", "not JSON"),
        ('{"a": 1}', "'a', which is not a key"),
        (json.dumps({"0" * 64: "1" * 63}), "which is not a key with a sha256"),
        (f'{{"{"0" * 64}": "{"1" * 64}", "{"0" * 64}": "{"2" * 64}"}}', "twice"),
        (" " * 2**20 + "{}", "more than 1048576 bytes"),
        ("\udce4", "cannot be read"),
    ],
)
def test_unreadable_pins_let_nothing_pass(hub, sound, tmp_path, text, problem):
    path = tmp_path / "pins.json"
    if problem != "cannot be read":
        path.write_text(text)
    pins = Pins.read(path)
    assert problem in pins.problem
    assert problem in line_of(lambda: machine(tmp_path / "one", hub, pins=pins).hub.find(sound.key))
    assert hub.count("/blob/") == 0
