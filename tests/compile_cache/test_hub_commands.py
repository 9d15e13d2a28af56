"""The command line for a repository: texts and exit codes; once as a command, with HF_ENDPOINT."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from compile_cache import hub_commands
from compile_cache.__main__ import main
from compile_cache.hub import HubStore
from compile_cache.key import key_of
from compile_cache.refusals import Refusals
from compile_cache.store import LocalStore
from tests.compile_cache.hubs import REPO, TOKEN, machine, offer
from tests.fixtures.fake_hub import FakeHub


@pytest.fixture
def hub(monkeypatch):
    with FakeHub(token=TOKEN) as hub:
        hub.repos.create(REPO)
        # The client reads HF_ENDPOINT when it is imported, long before this.
        real = HubStore
        monkeypatch.setattr(hub_commands, "HubStore", lambda *a, **k: real(*a, endpoint=hub.url, **k))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("COMPILE_CACHE_REPO", REPO)
        yield hub


@pytest.fixture
def run(store, hub, capsys):
    def call(*arguments: str) -> tuple[int, str]:
        code = main(["--store", str(store.root), *arguments])
        captured = capsys.readouterr()
        assert TOKEN not in captured.out + captured.err
        return code, captured.out + captured.err

    return call


@pytest.fixture
def made(tmp_path):
    return offer(tmp_path)


def for_another_machine(made) -> dict[str, bytes]:
    """An entry whose key names another torch."""
    fields = json.loads(json.dumps(made.manifest.fields))
    fields["environment"]["torch"] = "0.0"
    return replace(made, manifest=replace(made.manifest, fields=fields, key=key_of(fields))).files()


def test_push(run, store, made, tmp_path, hub, monkeypatch):
    assert run("push", made.key[:8]) == (1, f"error: no entry begins with '{made.key[:8]}'\n")
    made.put(store, tmp_path)
    code, text = run("push", made.key[:8])
    assert code == 0
    assert text.startswith(f"{made.key}  published to {REPO} at {hub.repos.get(REPO).commits[-1][:7]}\n")
    assert "has this package already, nothing was committed" in run("push", made.key[:8], "--repo", REPO)[1]
    code, text = run("push", made.key[:8], "--repo", "me/elsewhere")
    assert code == 1
    assert text.startswith("error: not published: the Hub answered 404: there is no such repository")
    assert run("push", made.key[:8], "--repo", "nonsense")[1].startswith("error: not published: 'nonsense' is not the")
    monkeypatch.delenv("HF_TOKEN")
    assert run("push", made.key[:8]) == (1, "error: there is no token: set HF_TOKEN or log in with `hf auth login`\n")


def test_pull(run, store, made, tmp_path, hub):
    hub.repos.put(REPO, {**made.files(), **for_another_machine(made)})
    assert run("pull", "zz")[0] == 1
    code, text = run("pull", made.key[:8])
    assert code == 0
    assert f"{made.key}  0.6 KB from Hub {REPO} at " in text
    assert f"it is tried out when it is first used with COMPILE_CACHE_REPO={REPO}" in text
    assert store.entries() == []
    assert machine(store.root, "http://127.0.0.1:9").hub.find(made.key).package.read_bytes() == made.package
    code, text = run("pull", "--all")
    assert code == 0
    assert "is in the local cache already" in text
    assert "left out, for another machine (environment.torch: here" in text
    assert "2 in Hub me/cache at" in text


def test_pull_what_is_refused(run, store, made, tmp_path, hub):
    hub.repos.put(REPO, {**made.files(), made.package_path: b"PK\0 something else"})
    code, text = run("pull", "--all")
    assert code == 1
    assert f"{made.key}  REFUSED: the Hub's package has 18 bytes" in text
    hub.repos.put(REPO, made.files())
    assert run("pull", "--all")[0] == 0


def test_prune_all_takes_what_is_of_the_repository_too(run, store, made, tmp_path, hub):
    broken = offer(tmp_path, sources="2")
    hub.repos.put(REPO, {**made.files(), **broken.files(), broken.package_path: b"PK\0 something else"})
    run("pull", "--all")
    assert len(Refusals(store.root / "refused").all()) == len(LocalStore(store.root / "pulled").entries()) == 1
    assert run("prune", "--older-than", "1")[0] == 0
    assert len(Refusals(store.root / "refused").all()) == 1
    assert run("prune", "--all")[0] == 0
    assert [item.name for item in store.root.iterdir() if item.name in ("refused", "pulled")] == []


def test_list_show_explain_verify(run, made, hub, store):
    hub.repos.put(REPO, {**made.files(), "README.md": b"hello", f"{'0' * 64}/manifest.json": b"{"})
    code, text = run("list", "--repo", REPO)
    assert code == 1
    assert f"Hub {REPO} at {hub.repos.get(REPO).commits[-1][:7]}: 2 entries" in text
    assert f"{made.key[:16]}  2026-01-31" in text
    assert "BROKEN: the manifest is not JSON" in text
    code, text = run("show", made.key[:6], "--repo", REPO, "--json")
    assert json.loads(text) == json.loads(made.manifest.to_json())
    code, text = run("explain", "--repo", REPO)
    assert f"{made.key[:16]}  fits" in text
    assert "0000000000000000  cannot be used: the manifest is not JSON" in text
    code, text = run("verify", "--repo", REPO)
    assert code == 1
    assert f"{made.key}  ok" in text
    assert f"{'0' * 64}  REFUSED: the manifest is not JSON" in text
    assert "2 checked, 1 refused" in text
    assert (store.entries(), store.quarantined()) == ([], [])
    assert "0000000000000000  quarantined: the manifest is not JSON" in run("list", "--repo", REPO)[1]
    assert run("list")[1].startswith(f"{store.root}: 0 entries")


@pytest.mark.parametrize("arguments", [("pull",), ("pull", "x", "--all")])
def test_wrong_usage(run, arguments):
    with pytest.raises(SystemExit) as usage:
        run(*arguments)
    assert usage.value.code == 2


def test_no_repository_named(run, monkeypatch, capsys):
    monkeypatch.delenv("COMPILE_CACHE_REPO")
    with pytest.raises(SystemExit):
        run("pull", "--all")
    assert "pull needs --repo OWNER/NAME, or COMPILE_CACHE_REPO to be set" in capsys.readouterr().err


def test_as_a_command(hub, made, tmp_path):
    store = LocalStore(tmp_path / "store")
    made.put(store, tmp_path)
    variables = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "compile_cache", "--store", str(store.root), "push", made.key]
    done = subprocess.run(
        command, env={**os.environ, **variables}, cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"published to {REPO}" in done.stdout
    assert TOKEN not in done.stdout + done.stderr
    assert machine(tmp_path / "other", hub).hub.find(made.key) is not None
