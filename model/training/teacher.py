"""Teacher forcing: clean and noisy blocks in one sequence, each block attending to the blocks it may see.

The same numbers as CausalWanTransformer.forward with a mask, at about a third of its cost: attention is computed
block by block, so that nothing invisible is computed. Knows nothing of losses or data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from model.schedule import TRAIN_TIMESTEPS
from model.training.export import BLOCK_FRAMES as BLOCK
from model.transformer import CausalWanTransformer


@dataclass(frozen=True)
class Layout:
    """Which blocks a sequence holds: `clean` and, after them, `noisy`, by their number in the clip."""

    clean: range
    noisy: range
    window: int  # blocks that a block sees, itself included

    def numbers(self) -> list[int]:
        """The clip's block number of each block of the sequence."""
        return [*self.clean, *self.noisy]

    def sees(self) -> list[list[int]]:
        """Per block of the sequence, the indices in the sequence of the blocks it may look at, in time order."""
        rows = []
        for index, number in enumerate(self.numbers()):
            past = [j for j, other in enumerate(self.clean) if number - self.window < other < number]
            rows.append([*past, index])
        return rows

    def frame_positions(self, block_frames: int) -> Tensor:
        """Position in time of every latent frame, int64."""
        return (torch.tensor(self.numbers())[:, None] * block_frames + torch.arange(block_frames)).flatten()

    def visible(self, block_frames: int) -> Tensor:
        """The same as a mask over frames, as CausalWanTransformer.forward takes it, bool [F, F]."""
        rows = self.sees()
        mask = torch.zeros(len(rows), len(rows), dtype=torch.bool)
        for index, row in enumerate(rows):
            mask[index, row] = True
        return mask.repeat_interleave(block_frames, 0).repeat_interleave(block_frames, 1)


def turn(x: Tensor, rotation: Tensor) -> Tensor:
    """x [B, F, P, H, D] turned by unit complex numbers [F, P, 1, D/2] -> [B, H, F·P, D], heads first."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    turned = torch.view_as_real(pairs * rotation).flatten(-2).to(x.dtype)
    return turned.flatten(1, 2).transpose(1, 2).contiguous()


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention over [B, H, S, D]; plain products, since torch's fused backward is slower on a CPU."""
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1).to(v.dtype) @ v


def forward(
    model: CausalWanTransformer, latents: Tensor, timestep: Tensor, text: Tensor, layout: Layout, block_frames: int
) -> Tensor:
    """latents [B, 16, F, h, w] in the order of the layout, timestep [B, F], text [B, L, D] -> flow, all frames."""
    rows, columns = (side // patch for side, patch in zip(latents.shape[3:], model.config.patch_size[1:], strict=True))
    cos, sin = (table.flatten(1, 2) for table in model.rope(layout.frame_positions(block_frames), rows, columns))
    rotation = torch.complex(cos, sin)
    sees, tokens = layout.sees(), block_frames * rows * columns

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        queries, keys = turn(q, rotation).split(tokens, 2), turn(k, rotation).split(tokens, 2)
        values = v.flatten(1, 2).transpose(1, 2).contiguous().split(tokens, 2)
        out = [
            attention(query, torch.cat([keys[j] for j in row], 2), torch.cat([values[j] for j in row], 2))
            for query, row in zip(queries, sees, strict=True)
        ]
        return torch.cat(out, 2).transpose(1, 2).unflatten(1, (-1, rows * columns))

    with sdpa_kernel(SDPBackend.MATH):  # for the cross-attention, for the same reason
        return model.run(latents, timestep, model.cross_kv(text), [attend] * len(model.blocks))


def frames_of(blocks: range) -> slice:
    """The latent frames of these blocks of a clip."""
    return slice(blocks.start * BLOCK, blocks.stop * BLOCK)


def denoise(
    model: CausalWanTransformer, past: Tensor, x: Tensor, sigma: Tensor, text: Tensor, layout: Layout
) -> Tensor:
    """The flow of the noisy frames x [B, 16, F, h, w], sigma [B, F], after the clean ones `past`, told timestep 0."""
    times = torch.cat([torch.zeros(past.shape[0], past.shape[2]), TRAIN_TIMESTEPS * sigma], dim=1)
    return forward(model, torch.cat([past, x], dim=2), times, text, layout, BLOCK)[:, :, past.shape[2] :]
