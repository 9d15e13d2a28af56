"""The memory plan: exact where sizes are known, counted where they are not, and within a GPU of 48 GB at full size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from model.__main__ import FAILED, WRONG, main
from model.binary import example_inputs
from model.config import read_config
from model.parts import load_parts
from model.plan import Live, Work, plan
from model.state import new_state
from model.weights import FILES, read_tensors
from tests.conftest import ROOT
from tests.fixtures.folders import make_folder

MB = 2**20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "random")


@pytest.mark.parametrize("fake", [False, True])
def test_live_bytes_are_counted(fake: bool) -> None:
    with FakeTensorMode() if fake else torch.no_grad():
        given = torch.zeros(MB, dtype=torch.uint8)
        with Live() as live:
            one = given + 1
            view = one[: MB // 2]
            two = one * 2
            assert (live.now, live.peak) == (2 * MB, 2 * MB)
            del one
            assert live.now == 2 * MB  # the view still holds it
            del view
            assert live.now == MB
            two += 1
            assert live.restart() == 2 * MB
            given.float().sum()
            assert (live.now, live.peak) == (MB, 5 * MB + 4)


def test_weights_and_state_are_those_of_the_real_model(folder: Path) -> None:
    config = read_config(folder)
    made = plan(config, 64, 96, room=3, dtype=torch.float32)
    for part in FILES:
        tensors = read_tensors(folder, part, torch.float32)
        assert made.weights[part] == sum(tensor.nbytes for tensor in tensors.values()), part
    state = new_state(config, 64, 96, torch.float32)
    assert made.kv == sum(tensor.nbytes for tensor in state.kv)
    assert made.caches == sum(tensor.nbytes for tensor in state.caches)
    assert made.frames == 3 * 12 * 64 * 96 * 3
    assert made.prompt == 4 * 16 * 48 * 4
    assert all(size > 0 for size in made.work.values())
    held = (*made.weights.values(), made.tables, made.kv, made.prompt, made.caches, made.frames)
    assert made.peak == sum(held) + max(made.work.values())


def test_temporaries_are_those_of_the_real_model(folder: Path) -> None:
    parts = load_parts(folder, "bfloat16")
    config, dtype = parts.config, parts.dtype
    inputs = example_inputs(config, dtype, "cpu")
    room, _, height, width, _ = inputs["generate"]["frames"].shape
    real = Work()
    real.count(parts.graph(real.control), inputs)
    planned = plan(config, height, width, room, dtype).work
    assert planned == pytest.approx(real.phases, rel=0.02)


PLAN = """
import json, sys
from model.__main__ import main
from tests.benchmarks.resident import from_here, status
main(["plan", "--model", sys.argv[1], "--size", "64x96", "--json"])  # imports what plans take
before, known = from_here(), set(sys.modules)
code = main(["plan", "--preset", "wan-1.3b", "--size", "480x832", "--json"])
print(json.dumps([(status("VmHWM") - before) / 1e6, sorted(set(sys.modules) - known)]))
sys.exit(code)
"""


def test_wan_at_full_size_fits_48_gb_and_planning_it_takes_no_memory(folder: Path) -> None:
    command = [sys.executable, "-c", PLAN, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    _, sizes, (grown, imported) = map(json.loads, done.stdout.splitlines())
    sizes = sizes["480x832"]
    # Parameters by diffusers' and transformers' own classes, in bfloat16; the cache of 21 frames of 1,560 tokens.
    assert sizes["weights: transformer"] == 2 * 1_418_996_800
    assert sizes["weights: vae"] == 2 * 126_892_531
    assert sizes["weights: text encoder"] == 2 * 5_680_910_336
    assert sizes["KV cache"] == 2 * 2 * 30 * 1536 * 21 * 1560
    assert sizes["prompt's keys and values"] == 2 * 2 * 30 * 1536 * 512
    assert sizes["held"] < sizes["peak"] <= 48e9
    assert grown < 200, imported  # MB, beside 14,000 of weights


def test_the_table_is_for_people(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", str(folder), "--size", "64x96", "--blocks-per-call", "3"]) == 0
    table = capsys.readouterr().err
    assert table.startswith("random weights, bfloat16: window of 9 latent frames, sink of 0, blocks per call: 3\n")
    assert "\n| MB | 64x96 |\n|---|---|\n| weights: transformer | " in table
    assert "\n| frames of a call | 0.66 |\n" in table


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--size", "100x100"], WRONG, "multiples of 16"),
        (["--size", "large"], WRONG, "height x width in pixels"),
        (["--blocks-per-call", "0"], WRONG, "blocks per call must be a whole number from 1"),
        (["--model", "/nowhere"], FAILED, "'/nowhere' is no model: it must be a folder"),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, words: str) -> None:
    assert main(["plan", *arguments]) == status
    assert words in capsys.readouterr().err
