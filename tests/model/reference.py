"""The rollout again, as plain nested loops written from the formulas: what the graph is compared with.

Shares the parts that have tests of their own (transformer step, ring, noise, decoder), and none of the graph's
control flow: no flat loop, no step arithmetic, no where.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from model.config import ModelConfig
from model.noise import normal, normal_table
from model.state import new_state, ring_view
from model.transformer import CausalWanTransformer
from model.vae import WanVae


@dataclass
class Decisions:
    """Limits as a request gives them (None is off), and what came of them."""

    steps: int
    max_attempts: int = 0
    resample_above: float | None = None
    resample_blocks: int = 1000
    skip_below: float | None = None
    still_below: float | None = None
    log: list[str] = field(default_factory=list)
    forwards: int = 0
    denoised: int = 0
    resampled: int = 0
    skipped: int = 0


def difference(a: Tensor, b: Tensor) -> int:
    """Mean absolute difference in 1/65,536, by integers."""
    return sum(((a - b).abs() * 65_536).round().long().flatten().tolist()) // a.numel()


def unsettled(changes: list[int], share: float | None) -> bool:
    """Whether the last change is more than that share of the first; one change alone tells nothing."""
    return share is not None and len(changes) > 1 and changes[-1] * 65_536 > round(share * 65_536) * changes[0]


def at_most(value: int, limit: float | None) -> bool:
    return limit is not None and value <= round(limit * 65_536)


@torch.no_grad()
def roll(
    transformer: CausalWanTransformer, vae: WanVae, config: ModelConfig, cross: list[Tensor], *,
    seed: int, blocks: int, height: int, width: int, decisions: Decisions, dtype: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """uint8 [frames, H, W, 3] of up to `blocks` blocks."""
    rollout, table = config.rollout, normal_table()
    state = new_state(config, height, width, dtype)
    cache = [tuple(state.kv[i : i + 2]) for i in range(0, len(state.kv), 2)]
    crosses = [tuple(cross[i : i + 2]) for i in range(0, len(cross), 2)]
    factor = config.vae.spatial_factor
    shape = (1, config.transformer.in_channels, rollout.block_frames, height // factor, width // factor)
    video = []
    for block in range(blocks):

        def flow(x: Tensor, timestep: float, block: int = block) -> Tensor:
            decisions.forwards += 1
            times = torch.full((1, rollout.block_frames), timestep)
            slot, positions, held = ring_view(torch.tensor(block), rollout.sink_blocks, rollout.window_blocks)
            return transformer.step(x.to(dtype), times, crosses, cache, slot, positions, int(held)).float()

        for attempt in range(decisions.max_attempts + 1):
            x0, changes = torch.zeros(shape), []
            for step in range(decisions.steps):
                s = 1 - step / decisions.steps
                sigma = torch.tensor(rollout.shift * s / (1 + (rollout.shift - 1) * s))
                counters = [torch.tensor(value) for value in (seed, block, step, attempt)]
                noise = normal(table, x0.numel(), *counters).view(shape)
                x = (1 - sigma) * x0 + sigma * noise
                before, x0 = x0, x - sigma * flow(x, float(torch.tensor(1000.0 * sigma.item())))
                decisions.denoised += 1
                changes += [difference(x0, before)] if step else []
                last = step + 1 == decisions.steps
                if step and not last and at_most(changes[-1], decisions.skip_below):
                    break
            may = attempt < decisions.max_attempts and block < decisions.resample_blocks
            if not (may and unsettled(changes, decisions.resample_above)):
                break
            decisions.resampled += 1
            decisions.log.append(f"block {block}: resampled")
        else:
            raise AssertionError("unreachable")
        if step + 1 < decisions.steps:
            decisions.skipped += decisions.steps - 1 - step
            decisions.log.append(f"block {block}: skipped {decisions.steps - 1 - step}")
        flow(x0, rollout.context_noise)
        decoded, state.caches = vae.decode(vae.denormalise(x0).to(dtype), state.caches, torch.tensor(block == 0))
        frames = ((decoded[0].float() + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 3, 0)
        video.append(frames[config.first_frames_hidden :] if block == 0 else frames)
        if at_most(difference(x0[:, :, -1], x0[:, :, 0]), decisions.still_below):
            decisions.log.append(f"block {block}: still")
            break
    return torch.cat(video)
