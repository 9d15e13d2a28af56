"""Loading: every missing, unexpected, wrong-shaped or damaged piece is named, on the command line too."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from compile_cache.specs import constants_of
from model.binary import open_runner
from model.config import ConfigError
from model.parts import load_parts
from model.pipeline import Pipeline
from model.weights import FILES, WeightsError
from tests.fixtures.folders import make_folder

PROJ = "proj_out.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "random")


def edit(folder: Path, part: str, change) -> None:
    tensors = load_file(folder / FILES[part])
    change(tensors)
    save_file(tensors, folder / FILES[part])


@pytest.mark.parametrize("mode", ["eager", "auto"])
@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("transformer", lambda t: t.pop(PROJ), "missing: proj_out.weight"),
        ("transformer", lambda t: t.update({PROJ: t[PROJ].T.contiguous()}), r"proj_out.weight is \[48, 64\], not"),
        ("transformer", lambda t: t.update(extra=torch.zeros(1)), "unexpected: extra"),
        ("vae", lambda t: t.pop("decoder.conv_in.bias"), "missing: decoder.conv_in.bias"),
        ("text_encoder", lambda t: t.update({"shared.weight": torch.zeros(3, 32)}), r"shared.weight is \[3, 32\], not"),
        ("text_encoder", lambda t: t.pop("encoder.final_layer_norm.weight"), "missing: encoder.final_layer_norm"),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder: Path, mode: str, part: str, change, words: str) -> None:
    edit(folder, part, change)
    with pytest.raises(WeightsError, match=words):
        open_runner(folder, mode)


@pytest.mark.parametrize("part", FILES)
def test_files_that_cannot_be_read_are_named(folder: Path, part: str) -> None:
    file = folder / FILES[part]
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(WeightsError, match=FILES[part]):
        open_runner(folder, "eager")
    file.unlink()
    with pytest.raises(WeightsError, match=f"{FILES[part]} is missing"):
        open_runner(folder, "eager")


@pytest.mark.parametrize("file", ["onegraph.json", "vae/config.json", "tokenizer/tokenizer.json"])
def test_configurations_that_cannot_be_read_are_named(folder: Path, file: str) -> None:
    (folder / file).write_text("{ not json")
    with pytest.raises(ConfigError, match=file):
        Pipeline(folder, open_runner(folder, "eager"))


def test_a_tokenizer_with_more_tokens_than_the_text_encoder_is_refused(folder: Path) -> None:
    config = folder / "text_encoder" / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 64', '"vocab_size": 8'))
    with pytest.raises(ConfigError, match="vocabulary is 8"):
        Pipeline(folder, None)


def test_the_command_line_says_it_too(folder: Path) -> None:
    edit(folder, "transformer", lambda t: t.pop(PROJ))
    command = [sys.executable, "-m", "model", "generate", "a red ball", "--model", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "missing: proj_out.weight" in json.loads(done.stdout)["error"]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_binary_constants_are_those_of_the_modules(folder: Path, precision: str) -> None:
    """Loading a binary never builds the text encoder, so its names are put together by hand: they must agree."""
    parts = load_parts(folder, precision)
    bound = parts.constants()
    for modules in (parts.modules(), parts.graph()):
        for name, module in modules.items():
            expected = constants_of(module)
            assert set(bound[name]) == set(expected)
            for constant, tensor in expected.items():
                assert torch.equal(bound[name][constant], tensor), constant
