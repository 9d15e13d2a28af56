"""Models in two forms with the same random weights: diffusers' and ours. For comparisons in float32."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from torch import Tensor

from model.config import TransformerConfig, VaeConfig, from_mapping
from model.transformer import CausalWanTransformer
from model.vae import WanVae


def transformers(**values: Any) -> tuple[WanTransformer3DModel, CausalWanTransformer]:
    """Of that configuration, where it leaves something open small and as Wan is."""
    torch.manual_seed(0)
    values = dict(freq_dim=32, in_channels=16, out_channels=16, patch_size=[1, 2, 2], cross_attn_norm=True,
                  rope_max_seq_len=64) | values  # fmt: skip
    theirs = WanTransformer3DModel(**values).eval()
    for name, parameter in theirs.named_parameters():  # gains of one and zero biases would hide mistakes
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=float(name.endswith("weight")), std=0.3)
    ours = CausalWanTransformer(from_mapping(TransformerConfig, values, "test")).eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def vaes(**values: Any) -> tuple[AutoencoderKLWan, WanVae]:
    """The same of VAEs; latents with uneven statistics."""
    torch.manual_seed(0)
    channels = values["z_dim"]
    values = dict(
        latents_mean=[0.1 - 0.2 * (index % 4) for index in range(channels)],
        latents_std=[0.7 + 0.3 * (index % 5) for index in range(channels)],
        temperal_downsample=[False, True, True],
    ) | values  # fmt: skip
    theirs = AutoencoderKLWan(**values).eval()
    for name, parameter in theirs.named_parameters():  # gains of one and small biases would hide mistakes
        if not name.endswith("weight"):
            torch.nn.init.normal_(parameter, std=0.5)
    ours = WanVae(from_mapping(VaeConfig, values, "test")).eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()
