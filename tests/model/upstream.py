"""Self-Forcing's rollout from its formulas, on diffusers' own transformer and VAE: what ours is compared with.

Shares nothing with the package but the noise, which is handed in. Keys and values are kept in Python lists, one entry
per finished block, and rotated as complex numbers.

  σ = shift·s / (1 + (shift − 1)·s) with s = 1 − i/1000, timestep 1000·σ; the first step has s = 1
  x = (1 − σ)·x0 + σ·noise, x0 = x − σ·flow, with fresh noise at every step
  then one forward on x0 at the timestep of the context noise, whose keys and values are what later blocks see
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from torch import Tensor

STEP_INDICES = {1: [1000], 2: [1000, 500], 4: [1000, 750, 500, 250]}  # upstream's lists


@dataclass(frozen=True)
class Sampling:
    blocks: int
    block_frames: int = 3
    window: int = 7  # blocks that attention sees beside the sink, the current one included
    sink: int = 0
    shift: float = 5.0
    steps: int = 4
    context_noise: float = 0.0

    def seen(self, block: int) -> list[int]:
        """The finished blocks that `block` sees, in order."""
        recent = range(max(self.sink, block - self.window + 1), block)
        return [*range(min(self.sink, block)), *recent]


def turned(x: Tensor, positions: list[int], rows: int, columns: int) -> Tensor:
    """x [1, frames·rows·columns, H, D], its frames at `positions`: adjacent pairs as complex numbers, turned."""
    pairs = x.shape[-1] // 2
    spatial = x.shape[-1] // 6
    angles = []
    for axis, dim in (("t", pairs - 2 * spatial), ("h", spatial), ("w", spatial)):
        rates = 10_000.0 ** -(torch.arange(dim, dtype=torch.float64) / dim)
        places = {"t": positions, "h": range(rows), "w": range(columns)}[axis]
        angles.append(torch.tensor(list(places), dtype=torch.float64)[:, None] * rates)
    grid = torch.cat(
        [
            angles[0][:, None, None].expand(-1, rows, columns, -1),
            angles[1][None, :, None].expand(len(positions), -1, columns, -1),
            angles[2][None, None].expand(len(positions), rows, -1, -1),
        ],
        dim=-1,
    ).reshape(1, -1, 1, pairs)
    turned = torch.view_as_complex(x.double().unflatten(-1, (pairs, 2))) * torch.polar(torch.ones_like(grid), grid)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


class Remembering(WanAttnProcessor):
    """Self-attention over the blocks of a list and the one at hand, which replaces the list's last entry."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.rows, self.columns = rows, columns
        self.past: dict[int, tuple[Tensor, Tensor]] = {}
        self.sampling: Sampling
        self.block: int

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None):
        if encoder_hidden_states is not None:
            return super().__call__(attn, hidden_states, encoder_hidden_states, attention_mask, None)
        query, key, value = (
            part.unflatten(2, (attn.heads, -1))
            for part in (
                attn.norm_q(attn.to_q(hidden_states)),
                attn.norm_k(attn.to_k(hidden_states)),
                attn.to_v(hidden_states),
            )
        )
        self.past[self.block] = (key, value)
        seen, frames = [*self.sampling.seen(self.block), self.block], self.sampling.block_frames

        def positions(index: int) -> list[int]:
            # Without a sink, positions count from the start of the video; with one, it moves up to the window.
            first = index if self.sampling.sink else seen[index]
            return [first * frames + frame for frame in range(frames)]

        keys = [turned(self.past[b][0], positions(i), self.rows, self.columns) for i, b in enumerate(seen)]
        query = turned(query, positions(len(seen) - 1), self.rows, self.columns)
        values = [self.past[b][1] for b in seen]
        scores = torch.einsum("bqhd,bkhd->bhqk", query, torch.cat(keys, 1)) / query.shape[-1] ** 0.5
        attended = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), torch.cat(values, 1))
        return attn.to_out[0](attended.flatten(2))


@torch.no_grad()
def sample(
    transformer: WanTransformer3DModel, text: Tensor, size: tuple[int, int], sampling: Sampling,
    noise: Callable[[int, int], Tensor],
) -> Tensor:  # fmt: skip
    """Latents [1, 16, 3·blocks, h, w]; `noise(block, step)` is that step's, [1, 16, 3, h, w]."""
    processors = [Remembering(size[0] // 2, size[1] // 2) for _ in transformer.blocks]
    for layer, processor in zip(transformer.blocks, processors, strict=True):
        layer.attn1.set_processor(processor)
    finished = []
    for block in range(sampling.blocks):
        for processor in processors:
            processor.sampling, processor.block = sampling, block
        x0 = torch.zeros(())
        for step, index in enumerate(STEP_INDICES[sampling.steps]):
            s = index / 1000
            sigma = sampling.shift * s / (1 + (sampling.shift - 1) * s)
            x = (1 - sigma) * x0 + sigma * noise(block, step)
            x0 = x - sigma * transformer(x, torch.tensor([1000 * sigma]), text).sample
        transformer(x0, torch.tensor([sampling.context_noise]), text)
        finished.append(x0)
    return torch.cat(finished, dim=2)


@torch.no_grad()
def decode(vae: AutoencoderKLWan, latents: Tensor) -> Tensor:
    """[1, 3, frames, H, W] in [−1, 1]"""
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1) for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return vae.decode(latents * std + mean).sample
