"""Prompt to an iterator of blocks of frames: the only Python loop, the same for eager, JIT and AoT.

Knows what a request may ask for and which tensors the graph takes; not how the graph runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from compile_cache.errors import shown

from .config import ConfigError, ModelConfig, RolloutConfig, read_config, read_json
from .generator import LIMITS, MAX_STEPS, OFF, REPORT, STOP_REASONS, UNIT
from .hints import read_world
from .runner import Runner
from .schedule import step_tables
from .state import RolloutState, new_state
from .text import PromptTokenizer, clean

MAX_PROMPT = 2_000  # characters
MAX_SEED = 2**63 - 1
MAX_BLOCKS = 1_000
SIDE_PATCHES = (2, 64)  # a side of the video, in grid steps
MAX_DIFFERENCE = 1_000.0  # latents are of the order of 1
MAX_ATTEMPTS = 100


class GenerationError(RuntimeError):
    """The graph ended the video by itself because its numbers left the range of its dtype.

    `report` says where; blocks already handed out are sound.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(f"The model's numbers are not finite in block {report.blocks + 1}; the video ends before it.")
        self.report = report


class RequestError(ValueError):
    """A request cannot be served; the text is for visitors: what was wrong and what is allowed."""


@dataclass(frozen=True)
class Limits:
    """When to repeat, shorten or end; None is off.

    resample_above: a block whose last change from one x0 prediction to the next is more than this share of its first
    starts again with other noise, at most `max_attempts` times; it takes three steps or more to tell. Only the first
    `resample_blocks` may: later ones have context, and settle from the first step on. As mean absolute
    differences of latents: skip_below: two successive predictions that differ by this or less end a block's denoising.
    still_below: a block whose last latent frame differs from its first by this or less is the last.
    """

    max_attempts: int = 1
    resample_above: float | None = None
    skip_below: float | None = None
    still_below: float | None = None
    resample_blocks: int = MAX_BLOCKS

    @classmethod
    def of(cls, rollout: RolloutConfig) -> Limits:
        """The model's own."""
        return cls(
            rollout.max_attempts,
            rollout.resample_above,
            rollout.skip_below,
            resample_blocks=rollout.resample_blocks,
        )

    def tensor(self, steps: int) -> Tensor:
        """The graph's int64 vector `limits`."""

        def units(value: float | None) -> int:
            return OFF if value is None else round(value * UNIT)

        values = {
            "steps": steps,
            "max_attempts": self.max_attempts,
            "resample_above": units(self.resample_above),
            "resample_blocks": self.resample_blocks,
            "skip_below": units(self.skip_below),
            "still_below": units(self.still_below),
        }
        return torch.tensor([values[name] for name in LIMITS])


@dataclass(frozen=True)
class Request:
    prompt: str
    seed: int = 0
    blocks: int = 7
    height: int = 128
    width: int = 128
    steps: int = 4
    limits: Limits | None = None  # None: the model's own


@dataclass(frozen=True)
class Report:
    """What the graph did, counted since the start of the video."""

    blocks: int = 0
    forwards: int = 0  # runs of the transformer, one per block to commit it included
    steps: int = 0  # denoising steps
    resampled: int = 0  # blocks started again
    skipped: int = 0  # denoising steps saved
    stop_reason: str = STOP_REASONS[0]

    def plus(self, tensor: Tensor) -> Report:
        """With the graph's int64 vector `report` of one more call."""
        *counts, stop = tensor.tolist()
        named = dict(zip(REPORT, counts, strict=False))
        totals = {name: getattr(self, name) + count for name, count in named.items()}
        return Report(**totals, stop_reason=STOP_REASONS[stop])

    def as_dict(self) -> dict[str, int | str]:
        return asdict(self)


@dataclass(frozen=True)
class Block:
    index: int  # from 0
    frames: np.ndarray  # uint8 [12, H, W, 3], the first block's [9, H, W, 3]
    report: Report  # since the start of the video, up to the end of the call of the graph that made the block


class Pipeline:
    """A model folder's prompts and requests, run by `runner`. Serves any number of requests, one after another."""

    def __init__(self, folder: Path | str, runner: Runner) -> None:
        self.config: ModelConfig = read_config(folder)
        self.world = read_world(read_json(Path(folder) / "onegraph.json"), "onegraph.json")
        self.runner = runner
        vocabulary = self.config.text_encoder["vocab_size"]
        self._tokenizer = PromptTokenizer(Path(folder), self.config.rollout.text_length, vocabulary)

    def check(self, request: Request) -> Request:
        """The request with its prompt cleaned. Raises RequestError."""
        if len(request.prompt) > MAX_PROMPT:
            raise RequestError(f"The prompt has {len(request.prompt):,} characters; {MAX_PROMPT:,} are allowed.")
        prompt = clean(request.prompt)
        if not prompt:
            raise RequestError("The prompt is empty. Describe what the video shows.")
        _in_range("seed", request.seed, 0, MAX_SEED)
        _in_range("number of blocks", request.blocks, 1, MAX_BLOCKS)
        _in_range("number of steps", request.steps, 1, MAX_STEPS)
        check_size(self.config, request.height, request.width)
        _check_limits(request.limits or Limits.of(self.config.rollout))
        try:
            self._tokenizer.encode(prompt)
        except ConfigError as error:
            said = shown(str(error))
            raise RequestError(f"The model's tokenizer cannot be used for this prompt: {said}.") from None
        return replace(request, prompt=prompt)

    def hint(self, request: Request) -> str | None:
        """What to tell the visitor where the prompt of a checked request has words that the model does not know."""
        return self.world.hint(*self._tokenizer.words(request.prompt))

    @torch.no_grad()
    def stream(self, request: Request, blocks_per_call: int = 1) -> Iterator[Block]:
        """The request's blocks, as the graph makes them; fewer than asked for where it stops by its own rules.

        `blocks_per_call` blocks are made in one call of the graph; their bits do not depend on it.
        Raises RequestError before anything runs, GenerationError after the last sound block.
        """
        _in_range("number of blocks per call", blocks_per_call, 1, MAX_BLOCKS)
        request = self.check(request)
        config, device = self.config, self.runner.device
        token_ids, mask = (tensor.to(device) for tensor in self._tokenizer.encode(request.prompt))
        cross = self.runner.run("condition", [token_ids, mask])
        state = new_state(config, request.height, request.width, self.runner.dtype, device)
        fixed = [tensor.to(device) for tensor in request_tensors(config, request)]
        report = Report()
        while report.blocks < request.blocks:
            room = min(blocks_per_call, request.blocks - report.blocks)
            size = (config.block_video_frames, request.height, request.width, 3)
            frames = torch.zeros(room, *size, dtype=torch.uint8, device=device)
            inputs = generate_inputs(frames, state, fixed, cross)
            state.block, counts = self.runner.run("generate", list(inputs.values()))
            before, report = report.blocks, report.plus(counts)
            for index in range(before, report.blocks):
                video = frames[index - before].cpu().numpy()
                yield Block(index, video[config.first_frames_hidden :] if index == 0 else video, report)
            if report.stop_reason == "not finite":
                raise GenerationError(report)
            if report.stop_reason != STOP_REASONS[0]:
                return


def check_size(config: ModelConfig, height: int, width: int) -> None:
    """Raises RequestError where the model cannot draw videos of height × width pixels."""
    grid = config.grid
    low, high = (patches * grid for patches in SIDE_PATCHES)
    if any(side % grid or not low <= side <= high for side in (height, width)):
        offered = ", ".join(f"{h}x{w}" for h, w in config.rollout.sizes)
        raise RequestError(
            f"The size {height}x{width} cannot be drawn: height and width must be multiples of {grid} from {low} "
            f"to {high} pixels, for example {offered}."
        )


def request_tensors(config: ModelConfig, request: Request) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The graph's inputs seed, sigmas, timesteps and limits for a request."""
    rollout = config.rollout
    tables = step_tables(rollout.shift, request.steps, rollout.context_noise)
    sigmas, timesteps = (F.pad(table, (0, MAX_STEPS + 1 - len(table))) for table in tables)
    limits = request.limits or Limits.of(rollout)
    return torch.tensor(request.seed), sigmas, timesteps, limits.tensor(request.steps)


def generate_inputs(
    frames: Tensor, state: RolloutState, fixed: Sequence[Tensor], cross: Sequence[Tensor]
) -> dict[str, Tensor]:
    """The inputs of `generate` by name, in call order. fixed: `request_tensors`; cross: what `condition` returned."""
    return {
        "frames": frames,
        "block": state.block,
        **dict(zip(("seed", "sigmas", "timesteps", "limits"), fixed, strict=True)),
        **{f"{'kv'[i % 2]}_{i // 2}": tensor for i, tensor in enumerate(state.kv)},
        **{f"cache_{i}": tensor for i, tensor in enumerate(state.caches)},
        **{f"cross_{'kv'[i % 2]}_{i // 2}": tensor for i, tensor in enumerate(cross)},
    }


def _in_range(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise RequestError(f"The {name} must be a whole number from {low} to {high}.")


def _check_limits(limits: Limits) -> None:
    _in_range("number of attempts", limits.max_attempts, 0, MAX_ATTEMPTS)
    _in_range("number of blocks that may start again", limits.resample_blocks, 0, MAX_BLOCKS)
    for name in ("resample_above", "skip_below", "still_below"):
        value = getattr(limits, name)
        if value is not None and not 0 <= value <= MAX_DIFFERENCE:
            raise RequestError(f"The limit {name} must be a number from 0 to {MAX_DIFFERENCE:g}.")
