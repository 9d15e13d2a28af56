"""The 1.3B configuration: its tensors are those of diffusers and transformers, and every Wan name has one."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers, convert_wan_vae_to_diffusers
from torch import nn
from transformers import UMT5Config, UMT5EncoderModel

from model.config import read_config
from model.published.presets import WAN_1_3B
from model.published.wan_names import original_names, renamed, transformer_modules, vae_modules
from model.transformer import CausalWanTransformer
from model.vae import WanVae
from model.weights import TIED, load_text_encoder
from tests.model.published import wan_original

CONFIG = read_config(WAN_1_3B)
TENSORS = {"transformer": 825, "vae": 194, "text_encoder": 243}
PARAMETERS = {"transformer": 1_418_996_800, "vae": 126_892_531, "text_encoder": 5_680_910_336}


def ours(part: str) -> nn.Module:
    with torch.device("meta"):
        if part == "transformer":
            return CausalWanTransformer(CONFIG.transformer)
        return WanVae(CONFIG.vae) if part == "vae" else UMT5EncoderModel(UMT5Config(**CONFIG.text_encoder))


def theirs(part: str) -> nn.Module:
    """Built by the library from the same JSON, without any code of ours."""
    values = json.loads((WAN_1_3B / part / "config.json").read_text())
    with torch.device("meta"):
        if part == "text_encoder":
            return UMT5EncoderModel(UMT5Config(**values))
        return (WanTransformer3DModel if part == "transformer" else AutoencoderKLWan).from_config(values)


def shapes(module: nn.Module) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("part", ["transformer", "vae"])
def test_names_and_shapes_are_diffusers(part: str) -> None:
    expected = shapes(theirs(part))
    assert shapes(ours(part)) == expected
    assert len(expected) == TENSORS[part]
    assert sum(tensor.numel() for tensor in theirs(part).state_dict().values()) == PARAMETERS[part]


def test_the_text_encoder_takes_what_transformers_class_has() -> None:
    module = theirs("text_encoder")
    tensors = module.state_dict()
    assert len(tensors) == TENSORS["text_encoder"]
    assert sum(parameter.numel() for parameter in module.parameters()) == PARAMETERS["text_encoder"]
    stored = {name: tensor for name, tensor in tensors.items() if name not in TIED}  # as in the published files
    assert shapes(load_text_encoder(CONFIG, stored)) == shapes(module)


WAYS = [
    ("transformer", wan_original.transformer_names(), transformer_modules(CONFIG.transformer),
     convert_wan_transformer_to_diffusers),
    ("vae", wan_original.vae_names(), vae_modules(CONFIG.vae), convert_wan_vae_to_diffusers),
]  # fmt: skip


@pytest.mark.parametrize(("part", "names", "modules", "convert"), WAYS, ids=["transformer", "vae"])
def test_every_original_name_maps_both_ways(
    part: str, names: list[str], modules: dict[str, str], convert: Callable[[dict], dict]
) -> None:
    assert len(set(names)) == len(names) == TENSORS[part]
    # The library's own conversion says which name each tensor gets; the tensor carries its original name.
    expected = {name: diffusers for diffusers, name in convert({name: Named(name) for name in names}).items()}
    assert {name: renamed(name, modules) for name in names} == expected
    assert set(expected.values()) == set(ours(part).state_dict())
    assert original_names(expected.values(), modules) == expected
    back = {ours: wan for wan, ours in modules.items()}
    assert [renamed(expected[name], back) for name in names] == names


@pytest.mark.parametrize(
    "name", ["blocks.30.norm3.weight", "blocks.0.modulation.weight", "head.head", "blocks.0.self_attn.q.lora", ""]
)
def test_a_name_of_another_model_has_no_translation(name: str) -> None:
    assert renamed(name, transformer_modules(CONFIG.transformer)) is None


class Named(str):
    """A tensor's stand-in in the library's conversion, which looks at names alone."""

    __slots__ = ()
