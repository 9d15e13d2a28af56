"""A model folder's safetensors files -> the parts' parameters. Knows no Hub and no graph.

Only safetensors are read: a pickle can run code. Every missing, unexpected or wrong-shaped tensor is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compile_cache.errors import shown

from .config import ConfigError, ModelConfig
from .progress import Progress, quiet
from .shards import WeightsError, listed, read_shards
from .transformer import CausalWanTransformer
from .vae import WanVae

FILES = {
    "transformer": "transformer/diffusion_pytorch_model.safetensors",
    "vae": "vae/diffusion_pytorch_model.safetensors",
    "text_encoder": "text_encoder/model.safetensors",
}
# What UMT5's encoder is made from. Whatever else a config.json holds (how its authors quantised it, which attention
# they called) is about other code than ours.
ENCODER_FIELDS = ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads", "relative_attention_num_buckets",
                  "relative_attention_max_distance", "dropout_rate", "layer_norm_epsilon", "feed_forward_proj",
                  "dense_act_fn", "is_gated_act")  # fmt: skip
TIED = {"encoder.embed_tokens.weight": "shared.weight"}  # UMT5 stores its embedding once, mostly as the second


def read_tensors(folder: Path, part: str, dtype: torch.dtype, progress: Progress = quiet) -> dict[str, Tensor]:
    """All tensors of a part, from one file or its shards, in `dtype` on the CPU. Raises WeightsError naming the file.

    progress(bytes read, bytes in all).
    """
    return read_shards(folder / FILES[part], dtype, progress)


def load_transformer(config: ModelConfig, tensors: Mapping[str, Tensor]) -> CausalWanTransformer:
    with torch.device("meta"):
        transformer = CausalWanTransformer(config.transformer)
    return _fill(transformer, tensors, "transformer")


def load_vae(config: ModelConfig, tensors: Mapping[str, Tensor]) -> WanVae:
    with torch.device("meta"):
        vae = WanVae(config.vae)
    return _fill(vae, tensors, "vae")


def load_text_encoder(config: ModelConfig, tensors: Mapping[str, Tensor]) -> nn.Module:
    return _fill(empty_text_encoder(config.text_encoder), untied(tensors), "text_encoder")


def empty_text_encoder(values: Mapping[str, Any]) -> nn.Module:
    """transformers' UMT5 encoder for the values of a config.json, on meta. Raises ConfigError.

    Its import takes seconds, so only where it is needed.
    """
    from transformers import UMT5Config, UMT5EncoderModel

    known = {name: values[name] for name in ENCODER_FIELDS if name in values}
    try:
        with torch.device("meta"):
            return UMT5EncoderModel(UMT5Config(**known, is_encoder_decoder=False, use_cache=False))
    except Exception as error:  # the library checks some values with errors of its own, and trips over others
        line = shown(" ".join(str(error).split()), 300)
        said = f"text_encoder/config.json is no configuration of UMT5: {type(error).__name__}: {line}"
        raise ConfigError(said) from None


def untied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Text encoder tensors with tied names filled in."""
    both = TIED | {source: name for name, source in TIED.items()}
    aliases = {name: tensors[other] for name, other in both.items() if other in tensors and name not in tensors}
    return {**tensors, **aliases}


def _fill(module: nn.Module, tensors: Mapping[str, Tensor], part: str) -> nn.Module:
    """Give a module on meta its parameters, by reference, ready for inference. Raises WeightsError."""
    check_tensors({name: p.shape for name, p in module.state_dict().items()}, tensors, FILES[part])
    module.load_state_dict(tensors, assign=True)
    return module.eval().requires_grad_(False)


def check_tensors(expected: Mapping[str, torch.Size], tensors: Mapping[str, Tensor], file: str) -> None:
    """Raises WeightsError naming what is missing, unexpected or of the wrong shape."""
    missing = [name for name in expected if name not in tensors]
    unexpected = [name for name in tensors if name not in expected]
    wrong = [
        f"{name} is {list(tensors[name].shape)}, not {list(shape)}"
        for name, shape in expected.items()
        if name in tensors and tensors[name].shape != shape
    ]
    faults, details = [], []
    for kind, names in (("missing", missing), ("unexpected", unexpected), ("wrong shape", wrong)):
        if names:
            faults.append(f"{kind}: {listed(names)}")
            details += [f"{kind}: {name}" for name in names]
    if faults:
        raise WeightsError(f"{file} does not fit its configuration: {'; '.join(faults)}", tuple(details))
