"""A model's modules and inputs without their memory: names, shapes, dtypes and a device, but no values.

For exporting and planning a model that is larger than the machine. Knows no files of weights: what it makes is what
loading them would make, on fake tensors (torch's FakeTensorMode).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from .config import ModelConfig
from .control import GRAPH, Control
from .generator import Condition, Generate
from .pipeline import Request, generate_inputs, request_tensors
from .state import new_state
from .transformer import CausalWanTransformer
from .vae import WanVae
from .weights import empty_text_encoder


@dataclass(frozen=True)
class Hollow:
    """A model at one size. modules and inputs by entry point; state tensors are the same objects throughout."""

    config: ModelConfig
    parts: dict[str, nn.Module]  # "transformer", "vae", "text_encoder"
    modules: dict[str, nn.Module]
    inputs: dict[str, dict[str, Tensor]]  # entry point -> input name -> tensor, in call order
    mode: FakeTensorMode = field(repr=False)  # in which its tensors can be computed with


def hollow(
    config: ModelConfig,
    height: int,
    width: int,
    *,
    room: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cpu",
    control: Control = GRAPH,
) -> Hollow:
    """The model for videos of height × width pixels, with room for that many blocks in one call.

    Raises ConfigError where the text encoder's configuration is none of UMT5.
    """
    text_encoder = empty_text_encoder(config.text_encoder)
    with torch.device("meta"):
        transformer, vae = CausalWanTransformer(config.transformer), WanVae(config.vae)
    parts = {"transformer": transformer, "vae": vae, "text_encoder": text_encoder}
    modules = {
        "condition": Condition(text_encoder, transformer),
        "generate": Generate(transformer, vae, config, control),
    }
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    made: dict[int, tuple[Tensor, Tensor]] = {}  # by the identity of what it stands for, which is kept for that
    for module in modules.values():
        _empty(module.eval(), dtype, device, mode, made)
    return Hollow(config, parts, modules, _inputs(config, height, width, room, dtype, device, mode), mode)


def _empty(
    module: nn.Module,
    dtype: torch.dtype,
    device: torch.device | str,
    mode: FakeTensorMode,
    made: dict[int, tuple[Tensor, Tensor]],
) -> None:
    """Fake parameters, in `dtype` as when they are loaded, and fake tables, in their own; shared ones stay shared."""
    for owner in module.modules():
        for named in (owner._parameters, owner._buffers):
            for name, old in named.items():
                if old is None:
                    continue
                if id(old) not in made:
                    is_weight = isinstance(old, nn.Parameter)
                    with mode:
                        new = torch.empty(old.shape, dtype=dtype if is_weight else old.dtype, device=device)
                    new = nn.Parameter(new, requires_grad=False) if is_weight else new
                    made[id(old)], made[id(new)] = (old, new), (new, new)
                named[name] = made[id(old)][1]


def _inputs(
    config: ModelConfig,
    height: int,
    width: int,
    room: int,
    dtype: torch.dtype,
    device: torch.device | str,
    mode: FakeTensorMode,
) -> dict[str, dict[str, Tensor]]:
    transformer, length = config.transformer, config.rollout.text_length
    fixed = request_tensors(config, Request("", height=height, width=width))
    head = (1, length, transformer.num_attention_heads, transformer.attention_head_dim)
    with mode:

        def empty(*shape: int, kind: torch.dtype = torch.int64) -> Tensor:
            return torch.empty(shape, dtype=kind, device=device)

        state = new_state(config, height, width, dtype, device)
        like = [empty(*tensor.shape, kind=tensor.dtype) for tensor in fixed]
        frames = empty(room, config.block_video_frames, height, width, 3, kind=torch.uint8)
        cross = [empty(*head, kind=dtype) for _ in state.kv]
        return {
            "condition": {"token_ids": empty(1, length), "mask": empty(1, length)},
            "generate": generate_inputs(frames, state, like, cross),
        }
