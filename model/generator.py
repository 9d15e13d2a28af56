"""THE GRAPH: entry points `condition` and `generate`. Knows no files, no prompts, no devices.

`generate` runs the whole rollout: noise, denoising, KV cache, resampling, skipping, stopping, decoding to uint8. One
loop whose body is one transformer forward; everything that happens around a forward is index arithmetic on 0-d
tensors. Keys, values, decoder caches and frames are written in place into tensors that come in: carried through the
loop they would be copied at every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .config import ModelConfig
from .control import GRAPH, Control
from .noise import normal, normal_table
from .schedule import add_noise, predict_x0
from .state import ring_view
from .transformer import CausalWanTransformer, KeyValue
from .vae import WanVae

MAX_STEPS = 8  # denoising steps per block that the schedule tables have room for
UNIT = 65_536  # latent differences are compared in 1/65,536, as integers
OFF = -1  # for a limit that is not in force

# The int64 vector `limits` that comes in, and the int64 vector `report` that goes out.
LIMITS = ("steps", "max_attempts", "resample_above", "resample_blocks", "skip_below", "still_below")
REPORT = ("blocks", "forwards", "steps", "resampled", "skipped", "stop")
STOP_REASONS = ("full", "still", "not finite")


class Condition(nn.Module):
    """`condition(token_ids, mask)`: a prompt's cross-attention keys and values, once per prompt."""

    def __init__(self, text_encoder: nn.Module, transformer: CausalWanTransformer) -> None:
        super().__init__()
        self.text_encoder = text_encoder
        self.transformer = transformer

    def forward(self, token_ids: Tensor, mask: Tensor) -> list[Tensor]:
        """token_ids, mask int64 [1, L] -> per layer keys and values [1, L, H, D], in one flat list.

        Embeddings past the prompt's length are set to zero, as in Wan.
        """
        embeddings = self.text_encoder(input_ids=token_ids, attention_mask=mask).last_hidden_state
        embeddings = embeddings * mask.unsqueeze(-1).to(embeddings.dtype)
        return [tensor for pair in self.transformer.cross_kv(embeddings) for tensor in pair]


class Generate(nn.Module):
    """`generate(...)`: fill `frames` with as many blocks as it has room for, from wherever the state stands."""

    def __init__(
        self, transformer: CausalWanTransformer, vae: WanVae, config: ModelConfig, control: Control = GRAPH
    ) -> None:
        super().__init__()
        self.transformer = transformer
        self.vae = vae
        self.rollout = config.rollout
        self.control = control
        self.register_buffer("normals", normal_table(), persistent=False)

    def forward(
        self,
        frames: Tensor,
        block: Tensor,
        seed: Tensor,
        sigmas: Tensor,
        timesteps: Tensor,
        limits: Tensor,
        *rest: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Returns (block int64 0-d, report int64 [6]); frames, kv and caches are renewed in place.

        frames: uint8 [N, 12, H, W, 3], N blocks of room; in the first block of a video the first 3 frames are void.
        block: int64 0-d, blocks that the state has behind it. seed: int64 0-d.
        sigmas, timesteps: float32 [MAX_STEPS + 1], `schedule.step_tables`, padded. limits: int64 [6], see LIMITS.
        rest: per layer keys, values [S, 3, h/2, w/2, H, D]; the decoder's caches [1, 2, ·, ·, C]; then what
        `condition` returned. Block N of a video is the same whether one call makes it or several.

        Per block: `steps` denoising forwards, each from the last x0 re-noised with fresh noise, then one forward that
        commits the clean block to the cache. Two successive x0 predictions that differ by `skip_below` or less end
        the denoising early. A block whose predictions do not settle, the last change being more than `resample_above`
        of the first, starts again with other noise, up to `max_attempts` times, if it is one of the first
        `resample_blocks`: relative, since a large object changes more than a small one, however sure the model is. A
        block whose last latent frame differs from its first by `still_below` or less is the last.
        """
        layers = len(self.transformer.blocks)
        kv, caches, cross = rest[: 2 * layers], rest[2 * layers : -2 * layers], rest[-2 * layers :]
        pairs, crosses = _pairs(kv), _pairs(cross)
        named = dict(zip(LIMITS, (limit.clone() for limit in limits.unbind()), strict=True))
        steps, max_attempts, share = named["steps"], named["max_attempts"], named["resample_above"]
        room = torch.full((), frames.shape[0], dtype=torch.int64, device=frames.device)
        x0 = self._blank_latents(kv[0])

        def go_on(emitted, _block, _step, _attempt, _x0, _first, counts, stop):
            return (emitted < room) & (stop == 0)

        def body(emitted, block, step, attempt, x0, first, counts, stop):
            zero = torch.zeros_like(step)
            commit = step == steps
            denoise = ~commit
            sigma, timestep = (table.index_select(0, step[None]).view(()) for table in (sigmas, timesteps))
            noise = normal(self.normals, x0.numel(), seed, block, step, attempt).view(x0.shape)
            x = add_noise(x0, noise, sigma)
            flow = self._flow(x, timestep, block, crosses, pairs)

            predicted = torch.where(commit, x0, predict_x0(x, flow, sigma))
            finite = predicted.isfinite().all()
            change = _difference(predicted, x0)
            first = torch.where(step == 1, change, first)
            compared = denoise & (step > 0)  # the first prediction has nothing to be compared with
            last = step + 1 == steps
            skip = compared & (change <= named["skip_below"]) & ~last
            done = denoise & (last | skip)
            unsettled = (step > 1) & (share >= 0) & (change * UNIT > share * first)
            poor = done & unsettled & (attempt < max_attempts) & (block < named["resample_blocks"])

            video = self._decode_if(commit, x0, block, frames, caches)
            frames.index_copy_(0, emitted[None], video[None])

            still = commit & (_difference(x0[:, :, -1], x0[:, :, 0]) <= named["still_below"])
            stop = torch.where(finite, still.to(torch.int64), torch.full_like(stop, STOP_REASONS.index("not finite")))
            skipped = torch.where(skip & ~poor, steps - 1 - step, zero)
            counts = counts + torch.stack([commit, torch.ones_like(commit), denoise, poor, skipped])
            attempt = torch.where(commit, zero, attempt + poor)
            step = torch.where(commit | poor, zero, torch.where(done, steps, step + 1))
            return emitted + commit, block + commit, step, attempt, predicted, first, counts, stop

        emitted, step, attempt, first, stop = (torch.zeros_like(block) for _ in range(5))
        carry = (emitted, block.clone(), step, attempt, x0, first, block.new_zeros(len(REPORT) - 1), stop)
        *_, counts, stop = carry = self.control.loop(go_on, body, carry)
        return carry[1].clone(), torch.cat([counts, stop[None]])

    def _blank_latents(self, keys: Tensor) -> Tensor:
        config = self.transformer.config
        _, frames, rows, columns = keys.shape[:4]
        height, width = rows * config.patch_size[1], columns * config.patch_size[2]
        return torch.zeros(1, config.in_channels, frames, height, width, device=keys.device)

    def _flow(self, x: Tensor, timestep: Tensor, block: Tensor, cross: list[KeyValue], cache: list[KeyValue]) -> Tensor:
        """One forward, float32 in and out; writes the block's keys and values to the cache."""
        slot, positions, held = ring_view(block, self.rollout.sink_blocks, self.rollout.window_blocks)
        size = self.control.size(held, self.rollout.cache_blocks)
        per_frame = timestep.expand(1, x.shape[2])
        return self.transformer.step(x.to(cache[0][0].dtype), per_frame, cross, cache, slot, positions, size).float()

    def _decode_if(self, commit: Tensor, x0: Tensor, block: Tensor, frames: Tensor, caches: Sequence[Tensor]) -> Tensor:
        """The block as uint8 [12, H, W, 3] where it is finished, else zeros; renews the decoder's caches.

        Branches inside a loop may not write to tensors from outside, so both return what is then written.
        """

        def decode(x0, block, *caches):
            raw = self.vae.denormalise(x0).to(caches[0].dtype)
            video, renewed = self.vae.decode(raw, caches, block == 0)
            return to_uint8(video), *renewed

        def keep(x0, block, *caches):
            return torch.zeros_like(frames[0]), *(cache.clone() for cache in caches)

        video, *renewed = self.control.branch(commit, decode, keep, (x0, block, *caches))
        for cache, new in zip(caches, renewed, strict=True):
            cache.copy_(new)
        return video


def to_uint8(video: Tensor) -> Tensor:
    """[1, 3, T, H, W] in [−1, 1] -> uint8 [T, H, W, 3]"""
    return ((video[0].float() + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 3, 0).contiguous()


def _difference(a: Tensor, b: Tensor) -> Tensor:
    """Mean absolute difference in 1/UNIT, int64 0-d. Rounded before it is summed: exact in any order of summation."""
    rounded = ((a - b).abs().nan_to_num(posinf=0.0) * UNIT).clamp(max=2.0**30).round().to(torch.int64)
    return rounded.sum() // rounded.numel()


def _pairs(flat: Sequence[Tensor]) -> list[KeyValue]:
    return list(zip(flat[::2], flat[1::2], strict=True))
