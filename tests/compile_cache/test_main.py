"""The command line: texts and exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compile_cache.__main__ import main
from compile_cache.key import key_of
from tests.compile_cache.packages import manifest_for


@pytest.fixture
def run(store, capsys):
    def call(*arguments: str) -> tuple[int, str]:
        code = main(["--store", str(store.root), *arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


@pytest.fixture
def two(store, small) -> list[str]:
    return [store.put(manifest_for(small[1], sources=digit * 64), small[1]).key for digit in "12"]


def test_empty(run):
    assert run("list")[0] == 0
    assert "0 entries" in run("list")[1]
    assert run("verify") == (0, "0 checked, 0 refused\n")
    assert run("prune", "--all") == (0, "0 removed, 0 kept\n")


def test_list_show_verify(run, two, store):
    code, text = run("list")
    assert code == 0
    assert all(key[:16] in text for key in two)
    assert "[run]" in text
    code, text = run("show", two[0][:10], "--json")
    assert code == 0
    assert json.loads(text)["key"] == two[0]
    code, text = run("show", two[0][:10])
    assert code == 0
    for words in (two[0], "publisher", "Apache-2.0", "environment.torch", "1 inputs, 0 of 0 weights used"):
        assert words in text
    assert run("show", "zz") == (1, "error: no entry begins with 'zz'\n")
    assert run("show", "") == (1, "error: 2 entries begin with ''\n")
    assert run("verify")[0] == 0
    (store.root / "v1" / two[0] / "package.pt2").write_bytes(b"x")
    (store.root / "v1" / two[1] / "manifest.json").write_bytes(b"x")
    code, text = run("list")
    assert code == 1
    assert "BROKEN" in text
    code, text = run("verify", two[0])
    assert code == 1
    assert "REFUSED, moved to quarantine: the package has 1 bytes" in text
    assert run("verify", two[0])[0] == 1  # not there any more
    assert run("show", two[1])[0] == 1
    assert "quarantined: the package has 1 bytes" in run("list")[1]


def test_list_as_json(run, two, store):
    (store.root / "v1" / two[1] / "manifest.json").write_bytes(b"x")
    store.put(
        manifest_for(store.root / "v1" / two[0] / "package.pt2", sources="3" * 64),
        store.root / "v1" / two[0] / "package.pt2",
    )
    store.reject(store.entries()[-1], "because")
    code, text = run("list", "--json")
    assert code == 1
    data = json.loads(text)
    assert data["store"] == str(store.root)
    entries = {entry["key"]: entry for entry in data["entries"]}
    assert entries.keys() == set(two)
    assert entries[two[0]]["entry_points"] == ["run"]
    assert entries[two[0]]["bytes"] == (store.root / "v1" / two[0] / "package.pt2").stat().st_size
    assert entries[two[1]]["error"].startswith("the manifest is not JSON")
    assert [item["reason"] for item in data["quarantined"]] == ["because"]


def test_explain(run, two, store, tmp_path):
    code, text = run("explain")
    assert code == 0
    for key in two:
        assert f"{key[:16]}  fits" in text  # as far as this machine is concerned
    assert f"environment.torch: {store.manifest(two[0]).fields['environment']['torch']}" in text
    assert f"    sources: here {'2' * 64}, there {'1' * 64}" in text  # what tells them apart
    fields = dict(store.manifest(two[0]).fields)
    file = tmp_path / "fields.json"
    file.write_text(json.dumps(fields))
    code, text = run("explain", "--fields", str(file))
    assert f"key here: {two[0]}, stored in" in text
    assert f"{two[0][:16]}  fits" in text
    assert f"{two[1][:16]}  differs in 1 field:\n    sources: here {'1' * 64}, there {'2' * 64}" in text
    fields["environment"] = {**fields["environment"], "torch": "0.1"}
    file.write_text(json.dumps(fields))
    data = json.loads(run("explain", "--fields", str(file), "--json")[1])
    assert (data["key"] in two, data["fields"]["environment"]["torch"]) == (False, "0.1")
    assert [entry["key"] for entry in data["entries"]] == two
    [difference] = data["entries"][0]["differences"]
    assert difference["field"] == "environment.torch"
    assert difference["here"] == "0.1"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "is none of the key's fields"),
        ('{"soruces": 1}', "'soruces' is none of"),
    ],
)
def test_explain_with_bad_fields(run, two, tmp_path, content, words):
    (tmp_path / "fields.json").write_text(content)
    code, text = run("explain", "--fields", str(tmp_path / "fields.json"))
    assert code == 1
    assert words in text


def test_prune(run, two, store, capsys):
    with pytest.raises(SystemExit) as usage:
        run("prune")
    assert usage.value.code == 2
    with pytest.raises(SystemExit):
        run("prune", "--older-than", "-1")
    assert "prune needs --older-than, --torch-version, --unusable or --all" in capsys.readouterr().err
    old = time.time() - 10 * 86400
    os.utime(store.root / "v1" / two[0], (old, old))
    assert run("prune", "--older-than", "30")[1] == "0 removed, 2 kept\n"
    assert run("prune", "--torch-version", "1.0")[1] == "0 removed, 2 kept\n"
    assert run("prune", "--older-than", "5") == (
        0,
        f"removed {two[0]}: stored 10 days ago\n1 removed, 1 kept\n",
    )
    version = store.manifest(two[1]).fields["environment"]["torch"]
    assert run("prune", "--torch-version", version)[1].endswith("1 removed, 0 kept\n")
    store.root.joinpath("quarantine").mkdir(exist_ok=True)
    run("prune", "--all")
    assert store.quarantined() == []


def test_prune_what_can_no_longer_match(run, two, store, small):
    assert run("prune", "--unusable")[1] == "0 removed, 2 kept\n"
    manifest = manifest_for(small[1], sources="4" * 64)
    fields = {**manifest.fields, "environment": {**manifest.fields["environment"], "libc": "glibc-1.0"}}
    old = dataclasses.replace(manifest, fields=fields, key=key_of(fields))
    store.put(old, small[1])
    (store.root / "v1" / two[0] / "manifest.json").write_bytes(b'{"schema": 1}')  # of an older version of ours
    here = manifest.fields["environment"]["libc"]
    assert run("prune", "--unusable", "--older-than", "1")[1] == "0 removed, 3 kept\n"  # both must hold
    code, text = run("prune", "--unusable")
    assert code == 0
    assert f"removed {old.key}: environment.libc: here {here}, there glibc-1.0\n" in text
    assert f"removed {two[0]}: the manifest has schema 1" in text
    assert text.endswith("2 removed, 1 kept\n")
    assert store.entries() == [two[1]]


def test_as_a_command(two, store):
    done = subprocess.run(
        [sys.executable, "-m", "compile_cache", "list"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "ONEGRAPH_CACHE": str(store.root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "2 entries" in done.stdout
    assert main(["--store", "/dev/null", "list"]) == 1
