"""Manifests: there and back, and everything the schema does not name is refused."""

from __future__ import annotations

import json

import pytest
import torch

from compile_cache.errors import ManifestError
from compile_cache.manifest import LARGEST_MANIFEST, Literal, parse


def test_there_and_back(small):
    manifest, _ = small
    again = parse(manifest.to_json())
    assert again == manifest
    assert again.seconds == 3.0
    assert list(again.entry_points) == ["run"]


def test_the_toys_manifest(toy):
    manifest = toy.entry.manifest
    assert parse(manifest.to_json()) == manifest
    assert manifest.publisher == "tests"
    assert manifest.licence == "Apache-2.0"
    assert manifest.fields["config"] == {"toy": 1}
    assert "body.unused" not in manifest.bound["rollout"]
    assert len(manifest.reference) == 64


def change(path: str, value):
    def apply(data):
        place = data
        *steps, last = path.split("/")
        for step in steps:
            place = place[int(step)] if isinstance(place, list) else place[step]
        if value is ...:
            del place[last]
        else:
            place[last] = value

    return apply


SPEC = "fields/entry_points/0"


@pytest.mark.parametrize(
    ("apply", "reason"),
    [
        (change("publisher", ...), "missing field publisher"),
        (change("extra", 1), "unknown field 'extra'"),
        (change("schema", 1), "schema 1"),
        (change("schema", ...), "schema None"),
        (change("key", "0" * 64), "not the hash of its fields"),
        (change("key", "0" * 63), "key has the wrong form"),
        (change("key", 5), "key is not a short"),
        (change("fields/sources", "b" * 64), "not the hash of its fields"),
        (change("fields/sources", 4), "sources is not a text"),
        (change("fields/extra", 4), "unknown field 'extra'"),
        (change("fields/kernels", ...), "missing field kernels"),
        (change("fields/config", []), "config is not an object"),
        (change("fields/entry_points", []), "1 to 64"),
        (change(f"{SPEC}/name", "../run"), "bad entry point name"),
        (change(f"{SPEC}/extra", 1), "expected exactly"),
        (change(f"{SPEC}/inputs/0/dtype", "int8; rm"), "unknown dtype"),
        (change(f"{SPEC}/inputs/0/dtype", "nn"), "unknown dtype"),
        (change(f"{SPEC}/inputs/0/shape", [-1]), "expected exactly"),
        (change(f"{SPEC}/inputs/0/shape", [True]), "expected exactly"),
        (change(f"{SPEC}/inputs/0/shape", [2**40]), "expected exactly"),
        (change(f"{SPEC}/inputs/0/device", "cuda:0"), "bad device"),
        (change("files/package.pt2/size", -1), "size"),
        (change("files/package.pt2/size", 2**60), "size"),
        (change("files/package.pt2/size", 1.5), "size"),
        (change("files/package.pt2/sha256", "G" * 64), "sha256 has the wrong form"),
        (change("files/package.pt2/path", "/etc"), "unknown field 'path'"),
        (change("files/other", {}), "unknown field 'other'"),
        (change("bound/run", ["w"]), "does not name"),
        (change("bound/other", []), "unknown field 'other'"),
        (change("bound/run", ...), "missing field run"),
        (change("bound/run", "w"), "not a list"),
        (change("literals/run", {"a": {"dtype": "float32", "shape": [2], "values": [1]}}), "number of values"),
        (change("literals/run", {"a": {"dtype": "float32", "shape": [1], "values": [[1]]}}), "not a number"),
        (change("literals/run", {"a": {"dtype": "float32", "shape": [9999], "values": []}}), "bad shape"),
        (change("figures/run/nodes", -1), "bad counts"),
        (change("figures/run/export_seconds", "1"), "bad seconds"),
        (change("reference", "x"), "reference has the wrong form"),
        (change("built_at", "yesterday"), "built_at has the wrong form"),
        (change("publisher", "a\nb"), "printable"),
        (change("licence", "a" * 501), "short"),
    ],
)
def test_refused(small, apply, reason):
    data = json.loads(small[0].to_json())
    apply(data)
    with pytest.raises(ManifestError, match=reason):
        parse(json.dumps(data).encode())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"schema": 2, "schema": 2}', "twice"),
        (b'{"schema": NaN}', "NaN"),
        (b"[" * 100_000, "not JSON"),
        (b" " * (LARGEST_MANIFEST + 1), "more than"),
    ],
)
def test_not_even_a_manifest(data, reason):
    with pytest.raises(ManifestError, match=reason):
        parse(data)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(2.5),
        torch.tensor([1, -2], dtype=torch.int64),
        torch.tensor([[True], [False]]),
        torch.tensor([float("inf"), float("-inf"), float("nan"), 0.1]),
        torch.tensor([0.1, 3.0], dtype=torch.bfloat16),
    ],
)
def test_literals_keep_every_bit(tensor):
    literal = Literal.of(tensor)
    json.dumps(literal.values, allow_nan=False)
    torch.testing.assert_close(literal.tensor("cpu"), tensor, rtol=0, atol=0, equal_nan=True)
