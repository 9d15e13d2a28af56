"""Loading: every missing, unexpected, wrong-shaped or damaged piece is named, on the command line too."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from compile_cache.specs import constants_of
from model.binary import open_runner
from model.config import ConfigError, read_config
from model.hollow import hollow
from model.parts import load_parts
from model.pipeline import Pipeline
from model.weights import FILES, WeightsError, load_text_encoder, read_tensors
from tests.fixtures.folders import TEXT, make_folder

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


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"d_model": "wide"}, "d_model"),  # transformers raises a kind of its own
        ({"d_ff": None}, "d_ff"),
        ({"feed_forward_proj": "gated-nothing"}, "KeyError: 'nothing'"),
        ({"feed_forward_proj": 3}, "feed_forward_proj"),
        ({"feed_forward_proj": "a-b-c"}, "not a valid activation function"),
        ({"d_kv": -8}, "RuntimeError"),
        ({"num_heads": 10**30}, "UMT5"),
    ],
)
def test_a_text_encoder_that_is_none_is_named(folder: Path, values: dict, words: str) -> None:
    config = replace(read_config(folder), text_encoder=TEXT | values)
    for made in (lambda: load_text_encoder(config, {}), lambda: hollow(config, 64, 64)):
        with pytest.raises(ConfigError, match=r"text_encoder/config.json is no configuration of UMT5") as caught:
            made()
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_what_a_text_encoder_says_of_other_code_is_not_heard(folder: Path) -> None:
    said = {"attn_implementation": "flash_attention_2", "torch_dtype": "float8", "quantization_config": {"bits": 4},
            "gradient_checkpointing": True, "use_cache": "often", "output_attentions": True}  # fmt: skip
    plain = read_config(folder)
    tensors = read_tensors(folder, "text_encoder", torch.float32)
    ids = torch.tensor([[1, 2, 3]])
    made = [load_text_encoder(replace(plain, text_encoder=TEXT | more), tensors)(ids)[0] for more in ({}, said)]
    assert torch.equal(*made)


def test_the_embedding_may_be_stored_under_either_name(folder: Path) -> None:
    edit(folder, "text_encoder", lambda t: t.update({"encoder.embed_tokens.weight": t.pop("shared.weight")}))
    text = load_parts(folder, "float32").text
    assert torch.equal(text["shared.weight"], text["encoder.embed_tokens.weight"])
    assert open_runner(folder, "eager", "float32").mode == "eager"


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
