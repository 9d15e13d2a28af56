"""The state of a rollout: everything that one call of the graph hands to the next, as named tensors.

Knows shapes and where blocks lie in the ring; computes nothing of the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .config import ModelConfig
from .vae import decoder_caches
from .vae_layers import CACHE_FRAMES


@dataclass
class RolloutState:
    """What a video has behind it, at one size. `generate` renews kv and caches in place and returns `block`."""

    block: Tensor  # int64 0-d: blocks made so far
    kv: list[Tensor]  # per layer keys, values [S, 3, h/2, w/2, H, D]
    caches: list[Tensor]  # the decoder's [1, 2, ·, ·, C], in order of use


def new_state(
    config: ModelConfig, height: int, width: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> RolloutState:
    """The state before the first block of a `height` × `width` (pixels) video: all zeros."""
    transformer, rollout = config.transformer, config.rollout
    latent_height, latent_width = (side // config.vae.spatial_factor for side in (height, width))
    rows, columns = latent_height // transformer.patch_size[1], latent_width // transformer.patch_size[2]
    ring = (rollout.cache_blocks, rollout.block_frames, rows, columns)
    heads = (transformer.num_attention_heads, transformer.attention_head_dim)

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return RolloutState(
        block=torch.zeros((), dtype=torch.int64, device=device),
        kv=[zeros(*ring, *heads) for _ in range(2 * transformer.num_layers)],
        caches=[
            zeros(1, CACHE_FRAMES, latent_height * scale, latent_width * scale, channels)
            for channels, scale in decoder_caches(config.vae)
        ],
    )


def ring_view(block: Tensor, sink: int, window: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where `block` (0-d int64, counted from the start of the video) goes in a ring of sink + window slots.

    The first `sink` blocks stay for ever; the others share `window` slots in turn. Returns the block's slot
    (0-d int64), each slot's position in the window [S] int64 (0 is the oldest; slots are contiguous in time, except
    that sink blocks move up to the window) and how many slots hold something (0-d int64): the first ones, since the
    ring fills from its first slot on. Index arithmetic only: nothing is shifted or copied when a block is evicted.
    """
    slots = torch.arange(sink + window, device=block.device)
    held = torch.where(slots < sink, slots, block - (block - slots) % window)  # the block that each slot holds
    newest = block.clamp(max=sink + window - 1)
    positions = torch.where(slots < sink, slots, newest - (block - held)).clamp(min=0)
    slot = torch.where(block < sink, block, sink + (block - sink) % window)
    return slot, positions, newest + 1
