"""The command line: what it prints, what it leaves behind, and how it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from compile_cache.key import FIELD_NAMES, SCHEMA, key_of
from compile_cache.manifest import PACKAGE, EntryFigures, FileRecord, Manifest
from model.service.video import read_settings
from tests.conftest import ROOT
from tests.fixtures.folders import make_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "random")


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "model", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_generate_says_what_it_did_and_writes_the_file(folder: Path, tmp_path: Path) -> None:
    arguments = ("generate", "a red ball", "--model", folder, "--mode", "eager", "--seed", 5, "--blocks", 2,
                 "--size", "64x96", "--steps", 2, "--skip-below", "0.5", "--json")  # fmt: skip
    first = json.loads(run(*arguments, "--out", tmp_path / "a.mp4").stdout)
    assert first["frames"] == 21
    assert (first["seed"], first["blocks"], first["steps"], first["forwards"]) == (5, 2, 4, 6)
    assert (first["resampled"], first["skipped"], first["stop_reason"], first["mode"]) == (0, 0, "full", "eager")
    assert first["binary"] == {"key": None, "source": None, "reason": "eager was asked for"}
    assert set(first["seconds"]) == {"load", "first_frames", "generate", "finish_file"}
    plain = {"prompt": "a red ball", "seed": 5, "blocks": 2, "size": "64x96", "steps": 2}
    rules = {"max_attempts": 1, "resample_above": None, "resample_blocks": 1000, "skip_below": 0.5, "still_below": None}
    assert read_settings(tmp_path / "a.mp4") == plain | rules
    again = json.loads(run(*arguments, "--blocks-per-call", 2).stdout)
    assert again["digest"] == first["digest"]


def test_generate_says_what_the_model_does_not_know(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", knows={"shape": ["ball", "cube"]}, things=["ball", "cube"])
    small = ("--model", folder, "--mode", "eager", "--blocks", 1, "--size", "64x64", "--steps", 1, "--json")
    told = "This small model does not know “zebra”, and makes something else instead. It knows the shapes ball, cube."
    done = run("generate", "a red zebra", *small)
    assert json.loads(done.stdout)["hint"] == told
    assert told in done.stderr.splitlines()
    done = run("generate", "a red ball", *small)
    assert "hint" not in json.loads(done.stdout)
    assert "not know" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["generate", ""], 2, "prompt is empty"),
        (["generate", "a ball", "--seed", "abc"], 2, "invalid int value: 'abc'"),
        (["generate", "a ball", "--seed", "-1"], 2, "seed must be a whole number from 0"),
        (["generate", "a ball", "--size", "100x100"], 2, "multiples of 16"),
        (["generate", "a ball", "--size", "large"], 2, "height x width in pixels"),
        (["generate", "a ball", "--blocks", "0"], 2, "number of blocks must be"),
        (["generate", "a ball", "--blocks-per-call", "0"], 2, "blocks per call must be"),
        (["generate", "a ball", "--threads", "0"], 2, "a whole number from 1 to 1024"),
        (["generate", "a ball", "--mode", "fast"], 2, "invalid choice: 'fast'"),
        (["generate", "a ball", "--skip-below", "-2"], 2, "skip_below must be a number"),
        (["generate", "a ball", "--skip-below", "never"], 2, "--skip-below"),
        (["generate", "a ball", "--out", "/nowhere/a.mp4"], 1, "name a file in a folder that is there"),
        (["generate", "a ball", "--model", "/nowhere"], 1, "'/nowhere' is no model: it must be a folder"),
        (["compile", "--model", "/nowhere"], 1, "'/nowhere' is no model: it must be a folder"),
        (["explain", "--model", "/nowhere"], 1, "'/nowhere' is no model: it must be a folder"),
        (["judge", "--model", "/nowhere"], 1, "is missing; a model folder has the layout"),
    ],
)
def test_refusals_are_one_clear_line(folder: Path, arguments: list[str], status: int, words: str) -> None:
    command, *own = arguments
    small = ["--model", folder, "--mode", "eager", "--size", "64x64"] if command == "generate" else []
    done = run(command, *small, *own)  # of an option given twice the last one counts
    assert done.returncode == status, done.stderr
    assert words in done.stderr


def test_a_name_in_the_variable_is_stripped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_ID", " /nowhere\t")
    assert "'/nowhere' is no model" in run("explain").stderr


def test_aot_without_a_binary_says_what_was_tried(folder: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("ONEGRAPH_CACHE", str(tmp_path / "empty"))
    done = run("generate", "a red ball", "--model", folder, "--mode", "aot", "--size", "64x64", "--json")
    assert done.returncode == 1
    assert "local cache has none" in json.loads(done.stdout)["error"]


def test_a_cache_that_cannot_be_written_is_said_before_compiling(folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("ONEGRAPH_CACHE", "/dev/null/cache")
    done = run("compile", "--model", folder)
    assert done.returncode == 1
    assert "cannot store a binary in /dev/null/cache" in done.stderr
    assert "exporting" not in done.stderr


def test_explain_names_what_keeps_a_stored_binary_from_being_used(folder: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("ONEGRAPH_CACHE", str(tmp_path))
    arguments = ("explain", "--model", folder, "--precision", "float32")
    empty = json.loads(run(*arguments, "--json").stdout)
    assert empty["entries"] == []
    assert set(empty["fields"]) == set(FIELD_NAMES)
    assert empty["fields"]["config"]["dtype"] == "float32"
    other = {**empty["fields"], "environment": {**empty["fields"]["environment"], "torch": "2.0.0"}}
    manifest = Manifest(
        schema=SCHEMA, key=key_of(other), fields=other, files={PACKAGE: FileRecord(1, "0" * 64)},
        bound={"condition": (), "generate": ()}, literals={"condition": {}, "generate": {}},
        figures={name: EntryFigures(1.0, 1.0, 1, {}) for name in ("condition", "generate")}, reference=None,
        built_at="2026-01-31T12:00:00Z", compiler="g++ 12", publisher="", licence="",
    )  # fmt: skip
    (tmp_path / "v1" / manifest.key).mkdir(parents=True)
    (tmp_path / "v1" / manifest.key / "manifest.json").write_bytes(manifest.to_json())
    told = run(*arguments).stderr
    assert f"key here: {empty['key']}, not stored in {tmp_path}" in told
    here = empty["fields"]["environment"]["torch"]
    assert f"{manifest.key[:16]}  differs in 1 field:\n    environment.torch: here {here}, there 2.0.0" in told
