"""What a compiled graph of ours is proven with: a few calls of its entry points, the same wherever the key is the same.

That is why this file is one of those whose content is in the key, and why it reads of the configuration only what is
in the key too: not the sizes, the schedule or the number of steps that a model offers. Needs no weights and no
transformers: it runs at every download.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from compile_cache.synthetic import noise

from .config import ModelConfig
from .generator import LIMITS, MAX_STEPS, OFF
from .schedule import step_tables
from .state import new_state

PATCHES = (4, 6)  # rows and columns of the video: small, unequal, and other than those the graph is traced with
STEPS = 2  # denoising steps per block: the first from noise alone, the second from a prediction and fresh noise
SHIFT = 5.0
BLOCKS = 2  # the first of a video, which is a case of its own, and one that goes on from its state
SEED = 2**40 + 7  # needs more than 32 bits


def calls(config: ModelConfig, dtype: torch.dtype) -> list[tuple[str, tuple[Tensor, ...]]]:
    """(entry point, inputs) in order: one prompt, then BLOCKS blocks of one video, one call each.

    State that a call renews in place is the same tensor object in the next. The cross-attention tensors are noise
    rather than the first call's result, so that each entry point is proven by itself.
    """
    length = config.rollout.text_length
    places = torch.arange(length)
    ids = (places % config.text_encoder["vocab_size"])[None]
    mask = (places < length * 3 // 4).to(torch.int64)[None]
    height, width = (patches * config.grid for patches in PATCHES)
    state = new_state(config, height, width, dtype)
    heads = (config.transformer.num_attention_heads, config.transformer.attention_head_dim)
    cross = [noise(f"cross {index}", (1, length, *heads), dtype) for index in range(len(state.kv))]
    sigmas, timesteps = (F.pad(table, (0, MAX_STEPS + 1 - len(table))) for table in step_tables(SHIFT, STEPS, 0.0))
    chosen = dict.fromkeys(LIMITS, OFF) | {"steps": STEPS}
    fixed = (torch.tensor(SEED), sigmas, timesteps, torch.tensor([chosen[name] for name in LIMITS]))
    frames = torch.zeros(1, config.block_video_frames, height, width, 3, dtype=torch.uint8)
    rest = (*fixed, *state.kv, *state.caches, *cross)
    blocks = [("generate", (frames, torch.tensor(block), *rest)) for block in range(BLOCKS)]
    return [("condition", (ids, mask)), *blocks]
