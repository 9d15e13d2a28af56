"""Configuration of the parts, read from a folder in diffusers layout. Knows no tensors and no weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class ConfigError(ValueError):
    """A configuration file is missing, is not JSON, or lacks a field."""


@dataclass(frozen=True)
class TransformerConfig:
    """The DiT, in the field names of diffusers' `WanTransformer3DModel`. Wan 2.1 1.3B in brackets."""

    num_attention_heads: int  # (12)
    attention_head_dim: int  # (128)
    text_dim: int  # (4096)
    ffn_dim: int  # (8960)
    num_layers: int  # (30)
    in_channels: int = 16
    out_channels: int = 16
    freq_dim: int = 256
    cross_attn_norm: bool = True
    eps: float = 1e-6
    patch_size: tuple[int, int, int] = (1, 2, 2)
    rope_max_seq_len: int = 1024

    @property
    def width(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @property
    def rope_dims(self) -> tuple[int, int, int]:
        """Real channels of one head that rotate with t, h and w; 44/42/42 for head dim 128."""
        spatial = 2 * (self.attention_head_dim // 6)
        return self.attention_head_dim - 2 * spatial, spatial, spatial


@dataclass(frozen=True)
class VaeConfig:
    """The VAE, in the field names of diffusers' `AutoencoderKLWan` (its spelling kept). Defaults: Wan 2.1."""

    base_dim: int  # (96)
    decoder_base_dim: int | None = None
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    temperal_downsample: tuple[bool, ...] = (False, True, True)
    latents_mean: tuple[float, ...] = (0.0,) * 16
    latents_std: tuple[float, ...] = (1.0,) * 16
    is_residual: bool = False
    in_channels: int = 3
    out_channels: int = 3
    patch_size: int | None = None

    @property
    def spatial_factor(self) -> int:
        """Pixels of height (or width) per latent."""
        return (self.patch_size or 1) * 2 ** (len(self.dim_mult) - 1)

    @property
    def temporal_factor(self) -> int:
        """Frames per latent frame, after the first, which stands for one frame."""
        return 2 ** sum(self.temperal_downsample)


@dataclass(frozen=True)
class RolloutConfig:
    """How blocks follow one another: the Self-Forcing sampler and the window of the KV cache."""

    block_frames: int = 3  # latent frames denoised together
    window_blocks: int = 7  # blocks that attention sees, the current one included, sink excluded
    sink_blocks: int = 0  # first blocks that are never evicted
    shift: float = 5.0  # timestep shift of the flow-matching schedule
    steps: int = 4  # denoising steps per block, unless a request says otherwise
    context_noise: float = 0.0  # timestep at which a finished block is written to the cache
    resample_above: float | None = None  # rules of the rollout, unless a request has its own: see pipeline.Limits
    max_attempts: int = 1
    resample_blocks: int = 1000
    skip_below: float | None = None
    text_length: int = 512  # tokens a prompt is padded or cut to
    fps: int = 16
    sizes: tuple[tuple[int, int], ...] = ((480, 832),)  # (height, width) offered, all on the grid
    licence: str = ""
    title: str = ""

    @property
    def cache_blocks(self) -> int:
        return self.sink_blocks + self.window_blocks


@dataclass(frozen=True)
class ModelConfig:
    transformer: TransformerConfig
    vae: VaeConfig
    text_encoder: Mapping[str, Any]
    rollout: RolloutConfig

    @property
    def grid(self) -> int:
        """Heights and widths are multiples of this many pixels."""
        return self.vae.spatial_factor * self.transformer.patch_size[1]

    @property
    def block_video_frames(self) -> int:
        """Frames of one block; the first block has `first_frames_hidden` fewer."""
        return self.rollout.block_frames * self.vae.temporal_factor

    @property
    def first_frames_hidden(self) -> int:
        """The first latent frame stands for one frame only, so block 0 begins with this many void frames."""
        return self.vae.temporal_factor - 1


def from_mapping(kind: type[T], values: Mapping[str, Any], origin: str) -> T:
    """Build dataclass `kind` from JSON values; other keys (diffusers keeps several) are ignored.

    Raises ConfigError, naming `origin`, where a field without default is missing or a value is of another type.
    """
    known = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name in values:
            value = _frozen(values[field.name])
            if not _fits(value, str(field.type)):
                raise ConfigError(f"{origin}: field {field.name!r} must be {field.type}, not {value!r}")
            known[field.name] = value
        elif field.default is MISSING:
            raise ConfigError(f"{origin}: field {field.name!r} is missing")
    return kind(**known)


def _fits(value: Any, annotation: str) -> bool:
    """Whether a JSON value can stand for a field of that annotation; tuples are looked into one level deep."""
    if value is None:
        return annotation.endswith("| None")
    if annotation.startswith("tuple["):
        inner = annotation.removeprefix("tuple[").removesuffix("]").split(",")[0]
        return isinstance(value, tuple) and len(value) > 0 and all(_fits(item, inner) for item in value)
    kinds = {"int": int, "float": (int, float), "bool": bool, "str": str}
    kind = annotation.removesuffix(" | None")
    return isinstance(value, kinds[kind]) and isinstance(value, bool) == (kind == "bool")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from `path`. Raises ConfigError naming the file."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing; a model folder has the layout of diffusers") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return values


def read_config(folder: Path | str) -> ModelConfig:
    """Read the configuration of every part below `folder`. Raises ConfigError naming the file."""
    folder = Path(folder)
    parts = {"transformer": "transformer/config.json", "vae": "vae/config.json", "rollout": "onegraph.json"}
    kinds = {"transformer": TransformerConfig, "vae": VaeConfig, "rollout": RolloutConfig}
    read = {name: from_mapping(kinds[name], read_json(folder / file), file) for name, file in parts.items()}
    text_encoder = read_json(folder / "text_encoder/config.json")
    if not isinstance(text_encoder.get("vocab_size"), int):
        raise ConfigError("text_encoder/config.json: field 'vocab_size' must be int")
    return ModelConfig(text_encoder=text_encoder, **read)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
