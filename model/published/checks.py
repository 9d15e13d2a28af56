"""Whether a model's settings are ones we can run, and fit each other. Knows JSON and modules on meta, no weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from compile_cache.errors import shown

from ..config import ConfigError, ModelConfig, RolloutConfig, TransformerConfig, VaeConfig, from_mapping, read_json
from ..generator import MAX_STEPS
from ..hints import read_world
from ..pipeline import MAX_ATTEMPTS, MAX_BLOCKS, MAX_DIFFERENCE, RequestError, check_size
from ..text import PromptTokenizer
from ..transformer import CausalWanTransformer
from ..vae import WanVae
from ..weights import empty_text_encoder
from .model_id import ModelError

CLASSES = {  # what a part's config.json may call itself
    "transformer": ("WanTransformer3DModel", "CausalWanTransformer3DModel"),
    "vae": ("AutoencoderKLWan",),
    "text_encoder": ("UMT5EncoderModel",),
}
SIZES = ("num_attention_heads", "attention_head_dim", "text_dim", "ffn_dim", "num_layers", "in_channels",
         "out_channels", "freq_dim", "patch_size", "rope_max_seq_len", "base_dim", "decoder_base_dim", "z_dim",
         "dim_mult", "num_res_blocks", "vocab_size", "d_model", "d_kv", "d_ff", "num_heads",
         "relative_attention_num_buckets", "relative_attention_max_distance")  # fmt: skip
LARGEST = {"num_layers": 1000, "num_res_blocks": 1000, "attention_head_dim": 4096, "rope_max_seq_len": 2**14}
LARGEST_OF_ALL = 2**24
LONGEST = 500  # characters of a title or a licence, which manifests of binaries repeat


def check(folders: Mapping[str, Path], sources: Mapping[str, str], rollout: Mapping[str, Any]) -> ModelConfig:
    """The configuration of parts from several places, in what their JSON says; rollout: values of an onegraph.json.

    Raises ModelError where the parts are not of a model we run, or do not fit each other; ConfigError.
    """
    values = {part: read_json(folders[part] / "config.json") for part in CLASSES}
    for part, allowed in CLASSES.items():
        named = values[part].get("_class_name") or values[part].get("architectures")
        names = named if isinstance(named, list) else [named]
        if named and not any(name in allowed for name in names):
            other = shown(", ".join(map(str, names)), 100)
            raise ModelError(f"{sources[part]} has another architecture: its {part} is {other}, not {allowed[0]}")
    for field in ("image_dim", "added_kv_proj_dim"):
        if values["transformer"].get(field) is not None:
            raise ModelError(f"{sources['transformer']} has another architecture: a transformer that takes images")
    where = {part: f"{sources[part]}: {part}/config.json" for part in CLASSES}
    transformer = from_mapping(TransformerConfig, values["transformer"], where["transformer"])
    vae, text = from_mapping(VaeConfig, values["vae"], where["vae"]), values["text_encoder"]
    origin = f"{sources['transformer']}: onegraph.json"
    config = ModelConfig(transformer, vae, text, from_mapping(RolloutConfig, rollout, origin))
    for part, known in (("transformer", vars(transformer)), ("vae", vars(vae)), ("text_encoder", text)):
        _check_sizes(known, where[part])
    if not isinstance(text.get("vocab_size"), int):
        raise ConfigError(f"{where['text_encoder']}: field 'vocab_size' must be int")
    _fit("channels", transformer.in_channels, sources["transformer"], vae.z_dim, sources["vae"])
    if not len(vae.latents_mean) == len(vae.latents_std) == vae.z_dim:
        raise ConfigError(f"{where['vae']}: 'latents_mean' and 'latents_std' must have {vae.z_dim} numbers each")
    _fit("text channels", transformer.text_dim, sources["transformer"], text.get("d_model"), sources["text_encoder"])
    _check_rollout(config, origin)
    read_world(rollout, origin)
    return config


def check_made(config: ModelConfig, tokenizer: Path) -> None:
    """Makes everything but the weights. tokenizer: the folder with tokenizer.json. Takes the seconds that importing
    transformers takes. Raises ConfigError."""
    empty_text_encoder(config.text_encoder)
    for part, make in (("transformer", CausalWanTransformer), ("vae", WanVae)):
        try:
            with torch.device("meta"):
                make(getattr(config, part))
        except Exception as error:  # of whatever torch finds wrong with its sizes
            line = shown(f"{type(error).__name__}: {error}", 300)
            raise ConfigError(f"{part}/config.json is no configuration that can be made: {line}") from None
    PromptTokenizer(tokenizer.parent, config.rollout.text_length, config.text_encoder["vocab_size"])


def _check_sizes(values: Mapping[str, Any], origin: str) -> None:
    """None may be absurd: some would be built for hours, others fail in the middle of a video."""
    for name in SIZES:
        value = values.get(name)
        high = LARGEST.get(name, LARGEST_OF_ALL)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and not 1 <= number <= high:
                raise ConfigError(f"{origin}: field {name!r} must be from 1 to {high}, not {shown(str(number), 40)}")


def _check_rollout(config: ModelConfig, origin: str) -> None:
    rollout = config.rollout
    ranges = {
        "block_frames": (1, 64),
        "window_blocks": (1, 1000),
        "sink_blocks": (0, 1000),
        "steps": (1, MAX_STEPS),
        "context_noise": (0, 1000),
        "text_length": (1, 4096),
        "fps": (1, 240),
        "resample_above": (0, MAX_DIFFERENCE),
        "max_attempts": (0, MAX_ATTEMPTS),
        "resample_blocks": (0, MAX_BLOCKS),
        "skip_below": (0, MAX_DIFFERENCE),
    }
    for name, (low, high) in ranges.items():
        value = getattr(rollout, name)
        if value is not None and not low <= value <= high:  # NaN is not
            raise ConfigError(f"{origin}: field {name!r} must be from {low} to {high}, not {value}")
    if not (math.isfinite(rollout.shift) and rollout.shift > 0):
        raise ConfigError(f"{origin}: field 'shift' must be a number above 0, not {rollout.shift}")
    for name in ("title", "licence"):
        text = getattr(rollout, name)
        if len(text) > LONGEST or not text.isprintable():
            raise ConfigError(f"{origin}: field {name!r} must be one printable line of at most {LONGEST} characters")
    for size in rollout.sizes:
        if len(size) != 2 or not all(type(side) is int for side in size):
            raise ConfigError(f"{origin}: each of 'sizes' must be a height and a width in pixels, not {list(size)}")
        try:
            check_size(config, *size)
        except RequestError as error:
            raise ConfigError(f"{origin}: {error}") from None


def _fit(what: str, ours: int, whose: str, theirs: object, other: str) -> None:
    if theirs != ours:
        raise ModelError(f"the parts do not fit each other: {ours} {what} in {whose}, {theirs} in {other}")
