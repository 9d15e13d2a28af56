"""The command line: texts and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compile_cache.__main__ import main
from tests.compile_cache.conftest import manifest_for


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
    code, text = run("show", two[0][:10])
    assert code == 0
    assert json.loads(text)["key"] == two[0]
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


def test_prune(run, two, store, capsys):
    with pytest.raises(SystemExit) as usage:
        run("prune")
    assert usage.value.code == 2
    with pytest.raises(SystemExit):
        run("prune", "--older-than", "-1")
    assert "prune needs --older-than, --torch-version or --all" in capsys.readouterr().err
    old = time.time() - 10 * 86400
    os.utime(store.root / "v1" / two[0], (old, old))
    assert run("prune", "--older-than", "30")[1] == "0 removed, 2 kept\n"
    assert run("prune", "--torch-version", "1.0")[1] == "0 removed, 2 kept\n"
    assert run("prune", "--older-than", "5") == (0, f"removed {two[0]}\n1 removed, 1 kept\n")
    version = store.manifest(two[1]).fields["environment"]["torch"]
    assert run("prune", "--torch-version", version)[1].endswith("1 removed, 0 kept\n")
    store.root.joinpath("quarantine").mkdir(exist_ok=True)
    run("prune", "--all")
    assert store.quarantined() == []


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
