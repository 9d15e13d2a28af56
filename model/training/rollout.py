"""The model's own blocks as training material, so that it learns to go on from what it made itself.

Self-forcing in a form that two CPU cores can pay for: after true context, all blocks of a layout are denoised at once,
without gradient, by a few of the sampler's steps. What comes out takes the place of clean blocks in the context (the
model learns not to let its faults grow), and what lies between the steps that of noisy ones (it learns to denoise
what few steps show it, rather than noise on true clips only). The target stays the true clip. After Self-Forcing
(Huang et al. 2025), which lets gradients run through a single step of each block likewise. Knows nothing of losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from model.schedule import add_noise, denoising_sigmas, predict_x0
from model.training.export import BLOCK_FRAMES as BLOCK
from model.training.export import SHIFT
from model.training.teacher import Layout, denoise
from model.transformer import CausalWanTransformer

STEPS = (4, 4, 2)  # the sampler's lengths, drawn with equal odds
SHARE = 0.6  # of the clips, how many get the model's own block in a place where they might


@dataclass(frozen=True)
class Own:
    """What the model made: x0 of the layout's noisy blocks, and x at noise level sigma, from where it would go on."""

    x0: Tensor  # [B, 16, F, h, w]
    x: Tensor
    sigma: float


def draw_levels(rng: np.random.Generator) -> list[float]:
    """Noise levels of the sampler's first steps, one or more of them, and the level that they end at."""
    sigmas = denoising_sigmas(SHIFT, int(rng.choice(STEPS)))
    return sigmas[: int(rng.integers(1, len(sigmas))) + 1]


@torch.no_grad()
def make(model: CausalWanTransformer, past: Tensor, text: Tensor, layout: Layout, levels: list[float]) -> Own:
    """Run the sampler's steps from each of the noise levels to the next on every noisy block of the layout."""
    x = torch.randn(*past.shape[:2], len(layout.noisy) * BLOCK, *past.shape[3:])
    for level, lower in pairwise(levels):
        flow = denoise(model, past, x, torch.full((x.shape[0], x.shape[2]), level), text, layout)
        x0 = predict_x0(x, flow.float(), torch.tensor(level))
        x = add_noise(x0, torch.randn_like(x0), torch.tensor(lower))
    return Own(x0, x, lower)


def grounded(layout: Layout) -> list[int]:
    """The noisy blocks that have context: what they hold follows from it. A first block is free in where it starts,
    so that the true one says nothing about the model's own."""
    return [number for number, row in zip(layout.numbers(), layout.sees(), strict=True) if len(row) > 1]


def mix_noisy(x: Tensor, sigma: Tensor, own: Own, layout: Layout, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Noisy frames and their levels [B, F], in some clips those of the model's own way, in grounded blocks."""
    may = torch.tensor([number in grounded(layout) for number in layout.noisy]).repeat_interleave(BLOCK)
    pick = torch.from_numpy(rng.random(x.shape[0]) < SHARE)[:, None] & may
    mixed = torch.where(pick[:, None, :, None, None], own.x, x)
    return mixed, torch.where(pick, torch.full_like(sigma, own.sigma), sigma)


def mix_context(past: Tensor, own: Own, layout: Layout, rng: np.random.Generator) -> Tensor:
    """Clean frames, in some clips the model's own in grounded blocks."""
    pick = torch.from_numpy(rng.random(past.shape[0]) < SHARE).view(-1, 1, 1, 1, 1)
    blocks = []
    for index, number in enumerate(layout.clean):
        block = past[:, :, index * BLOCK : (index + 1) * BLOCK]
        if number in layout.noisy and number in grounded(layout):
            at = layout.noisy.index(number) * BLOCK
            block = torch.where(pick, own.x0[:, :, at : at + BLOCK], block)
        blocks.append(block)
    return torch.cat(blocks, dim=2) if blocks else past
