"""Writes trained parts into a model folder in diffusers' layout, fp16. Knows nothing of training.

Every file is written beside its place and moved there, so that a reader never sees half of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from model.config import TransformerConfig, VaeConfig
from model.training.captions import EXAMPLES, SHAPE_WORDS, TEXT_LENGTH, WORDS, vocabulary, write_tokenizer

SHIFT, STEPS, BLOCK_FRAMES, WINDOW_BLOCKS = 1.5, 4, 3, 3
TRANSFORMER = TransformerConfig(
    num_attention_heads=4,
    attention_head_dim=56,
    in_channels=16,
    out_channels=16,
    text_dim=128,
    freq_dim=256,
    ffn_dim=672,
    num_layers=6,
)
TEXT_ENCODER: dict[str, Any] = {
    "architectures": ["UMT5EncoderModel"],
    "model_type": "umt5",
    "vocab_size": len(vocabulary()),
    "d_model": 128,
    "d_kv": 32,
    "d_ff": 256,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 64,
    "dropout_rate": 0.0,
    "feed_forward_proj": "gated-gelu",
    "pad_token_id": 0,
    "eos_token_id": 1,
    "is_encoder_decoder": False,
    "use_cache": False,
    "tie_word_embeddings": False,
}


def write_weights(path: Path, state: dict[str, Tensor]) -> None:
    """A state dict as fp16 safetensors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    save_file({k: v.detach().half().contiguous().clone() for k, v in state.items()}, fresh, {"format": "pt"})
    fresh.chmod(0o644)
    os.replace(fresh, path)


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(values, indent=2) + "\n")
    os.replace(fresh, path)


def write_vae(folder: Path, config: VaeConfig, state: dict[str, Tensor]) -> None:
    """vae/: weights and the configuration with the latents' statistics."""
    values = {"_class_name": "AutoencoderKLWan", **dataclasses.asdict(config)}
    values |= {"scale_factor_spatial": config.spatial_factor, "scale_factor_temporal": config.temporal_factor}
    values |= {"attn_scales": [], "dropout": 0.0}
    write_weights(folder / "vae/diffusion_pytorch_model.safetensors", state)
    write_json(folder / "vae/config.json", values)


def write_transformer(folder: Path, transformer: dict[str, Tensor], text_encoder: dict[str, Tensor]) -> None:
    """transformer/ and text_encoder/, which belong together since they are trained together."""
    values = {"_class_name": "WanTransformer3DModel", **dataclasses.asdict(TRANSFORMER)}
    values |= {"qk_norm": "rms_norm_across_heads", "added_kv_proj_dim": None, "image_dim": None}
    write_weights(folder / "transformer/diffusion_pytorch_model.safetensors", transformer)
    write_json(folder / "transformer/config.json", values)
    # UMT5 keeps its embedding under two names that share memory; the file has it once.
    once = {k: v for k, v in text_encoder.items() if k != "encoder.embed_tokens.weight"}
    write_weights(folder / "text_encoder/model.safetensors", once)
    write_json(folder / "text_encoder/config.json", TEXT_ENCODER)


def write_layout(folder: Path) -> None:
    """The files that do not depend on training: index, rollout, scheduler, tokenizer."""
    parts = {
        "transformer": ["diffusers", "WanTransformer3DModel"],
        "vae": ["diffusers", "AutoencoderKLWan"],
        "text_encoder": ["transformers", "UMT5EncoderModel"],
        "tokenizer": ["transformers", "PreTrainedTokenizerFast"],
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    }
    write_json(folder / "model_index.json", {"_class_name": "WanPipeline", **parts})
    write_json(folder / "onegraph.json", onegraph())
    scheduler = {
        "_class_name": "FlowMatchEulerDiscreteScheduler",
        "num_train_timesteps": 1000,
        "shift": SHIFT,
        "use_dynamic_shifting": False,
    }
    write_json(folder / "scheduler/scheduler_config.json", scheduler)
    write_tokenizer(folder / "tokenizer")


def onegraph() -> dict[str, Any]:
    """The values of onegraph.json: the rollout, and what the model says of itself."""
    things = {option.split()[0] for options in SHAPE_WORDS.values() for option in options}
    return {
        "title": "Onegraph tiny",
        "block_frames": BLOCK_FRAMES,
        "window_blocks": WINDOW_BLOCKS,
        "sink_blocks": 0,
        "shift": SHIFT,
        "steps": STEPS,
        "context_noise": 0.0,
        "text_length": TEXT_LENGTH,
        "fps": 16,
        "sizes": [[128, 128], [96, 160], [160, 96]],
        "licence": "apache-2.0",
        "examples": list(EXAMPLES),
        "knows": {name: [options[0] for options in values.values()] for name, values in WORDS.items()},
        "things": sorted(things),
    }


def folder_bytes(folder: Path) -> int:
    """Size of everything below the folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def initialise(module: nn.Module) -> None:
    """Xavier for linear layers, zero for the last one: training starts from a flow of zero. Wan's scale for the tables.

    1/√width of a normal distribution, as diffusers' WanTransformerBlock draws its scale_shift_table.
    """
    for name, parameter in module.named_parameters():
        if name.endswith("scale_shift_table"):
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        if name == "proj_out" and isinstance(layer, nn.Linear):
            torch.nn.init.zeros_(layer.weight)
