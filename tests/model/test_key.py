"""The model's key: what of its configuration counts, what does not, and that the proof's calls follow from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from compile_cache.trial import digest_of
from model import binary
from model.binary import GRAPH_SOURCES, MAX_ROOM, binary_fields, reference_calls
from model.config import read_config
from model.parts import Parts, assemble
from model.plan_command import configured
from model.precision import pick_precision
from model.state import new_state
from model.transformer import CausalWanTransformer
from model.vae import WanVae
from model.weights import empty_text_encoder
from tests.fixtures.folders import fields_of, make_folder

PARTS = {"transformer": "transformer/config.json", "vae": "vae/config.json", "text": "text_encoder/config.json",
         "rollout": "onegraph.json"}  # fmt: skip
Changed = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "random")


@pytest.fixture
def changed(folder: Path, tmp_path: Path) -> Changed:
    """changed("rollout", steps=3): a copy of the folder with other values in one configuration file."""

    def change(part: str, **values: object) -> Path:
        copy = shutil.copytree(folder, tmp_path / "copy")
        file = copy / PARTS[part]
        file.write_text(json.dumps(json.loads(file.read_text()) | values))
        return copy

    return change


def calls_digest(folder: Path, dtype: torch.dtype = torch.float32) -> str:
    calls = reference_calls(read_config(folder), dtype)
    return "".join(digest_of(call.inputs) + call.entry_point for call in calls)


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("rollout", {"sizes": [[96, 64]]}),
        ("rollout", {"steps": 2, "shift": 1.0, "context_noise": 100.0}),
        ("rollout", {"fps": 8, "title": "another", "licence": "MIT"}),
        ("rollout", {"knows": {"colour": ["red"]}, "things": ["ball"], "examples": ["a red ball"]}),
        ("transformer", {"_class_name": "X", "qk_norm": "none"}),  # diffusers' own, which we do not read
    ],
)
def test_what_does_not_change_the_key_does_not_change_the_proof(folder, changed, part, values):
    copy = changed(part, **values)
    assert fields_of(copy, "float32") == fields_of(folder, "float32")
    assert calls_digest(copy) == calls_digest(folder)


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("rollout", {"window_blocks": 2}),
        ("rollout", {"sink_blocks": 1}),
        ("rollout", {"block_frames": 2}),
        ("rollout", {"text_length": 8}),
        ("transformer", {"eps": 1e-5}),
        ("transformer", {"rope_max_seq_len": 64}),
        ("vae", {"latents_mean": [0.2] * 16}),
        ("text", {"layer_norm_epsilon": 1e-3}),
    ],
)
def test_what_changes_the_key(folder, changed, part, values):
    assert fields_of(changed(part, **values), "float32") != fields_of(folder, "float32")


def test_weights_and_place_do_not_change_the_key_and_the_dtype_does(folder, tmp_path):
    other = make_folder(tmp_path / "elsewhere", seed=1)
    assert fields_of(other, "float32") == fields_of(folder, "float32")
    assert calls_digest(other) == calls_digest(folder)
    assert fields_of(folder, "bfloat16") != fields_of(folder, "float32")


def test_the_code_that_defines_the_graph_and_its_proof_is_in_the_key(folder, tmp_path, monkeypatch):
    """Other files of the package are not."""
    before = fields_of(folder, "float32")
    copy = shutil.copytree(Path(binary.__file__).parent, tmp_path / "model", ignore=shutil.ignore_patterns("tiny"))
    monkeypatch.setattr(binary, "__file__", str(copy / "binary.py"))
    for name in ("pipeline", "binary", "serving", "video", "weights"):
        (copy / f"{name}.py").write_text("changed")
    assert fields_of(folder, "float32") == before
    for name in GRAPH_SOURCES:
        content = (copy / f"{name}.py").read_text()
        (copy / f"{name}.py").write_text(content + "\n")
        assert fields_of(folder, "float32")["sources"] != before["sources"], name
        (copy / f"{name}.py").write_text(content)
    assert {"generator", "transformer", "vae", "reference"} <= set(GRAPH_SOURCES)


def at_full_size(preset: str) -> Parts:
    """Of Wan 2.1 1.3B, on meta: names and shapes are all that a key is made of."""
    config, meta = configured("", preset), torch.device("meta")
    with meta:
        modules = {"transformer": CausalWanTransformer(config.transformer), "vae": WanVae(config.vae)}
    modules["text_encoder"] = empty_text_encoder(config.text_encoder)
    tensors = {part: module.state_dict() for part, module in modules.items()}
    return replace(assemble(config, pick_precision("float32", "cpu"), meta, tensors.pop), device=torch.device("cpu"))


def test_videos_of_any_length_are_of_one_key_and_the_window_is_in_it():
    window, same, other = (binary_fields(at_full_size(name)) for name in ("self-forcing", "causal-forcing", "longlive"))
    assert window == same
    assert window["config"]["rollout"] == {"window_blocks": 7, "sink_blocks": 0}
    assert other["config"]["rollout"] == {"window_blocks": 3, "sink_blocks": 1}
    for fields, ring in ((window, 7), (other, 4)):
        frames, block, *rest = fields["entry_points"][1]["inputs"]
        blocks = {"root": "blocks", "factor": 1, "offset": 0, "least": 1, "most": MAX_ROOM}
        assert (frames["shape"][0], block["shape"]) == (blocks, [])  # how many now, and how many before
        assert {named["shape"][0] for named in rest if named["name"].startswith(("k_", "v_"))} == {ring}
        assert "blocks" not in json.dumps(rest)


def test_the_calls_fit_the_entry_points_and_go_on_from_one_another(folder):
    config = read_config(folder)
    condition, first, second = reference_calls(config, torch.float32)
    names = {point["name"]: point["inputs"] for point in fields_of(folder, "float32")["entry_points"]}
    for call in (condition, first, second):
        assert len(call.inputs) == len(names[call.entry_point])
    kv = len(new_state(config, 64, 96, torch.float32).kv)
    assert [one is other for one, other in zip(first.inputs, second.inputs, strict=True)].count(False) == 1
    assert (int(first.inputs[1]), int(second.inputs[1])) == (0, 1)  # the block, which the first call returns
    assert all(tensor.std() > 0.5 for tensor in first.inputs[-kv:])
    assert not condition.inputs[1].all()  # a prompt shorter than its room


CALLS = """
import sys
from pathlib import Path
from model.binary import reference_calls
from model.device import pick_dtype
from model.config import read_config
calls = reference_calls(read_config(Path(sys.argv[1])), pick_dtype("auto"))
print(len(calls), [name for name in ("transformers", "torch._dynamo", "torch._inductor") if name in sys.modules])
"""


def test_the_calls_are_made_without_weights_transformers_or_the_compiler(folder, tmp_path, python):
    bare = shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    assert python("-c", CALLS, str(bare)).strip() == "3 []"
