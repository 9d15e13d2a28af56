"""Low-rank adapters (LoRA) as PEFT writes them, merged into the weights they were trained on: W + alpha / r · B · A.

Knows Wan's names and no file. LongLive's adapter (rank and alpha 256) covers every linear layer of every block.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .checkpoint import CheckpointError, original

SECTION = "generator_lora"
PREFIX = "base_model.model."  # PEFT's wrapping of the model
NAME = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(\.default)?\.weight")


@dataclass(frozen=True)
class Lora:
    """Module name -> (A [r, in], B [out, r]); alpha None: that of each module's rank, so that B · A counts once."""

    pairs: Mapping[str, tuple[Tensor, Tensor]]
    alpha: float | None = None

    def merged(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor of that name with its module's adapter added, in float32; as it is where there is none."""
        pair = self.pairs.get(name.removesuffix(".weight")) if name.endswith(".weight") else None
        if pair is None:
            return tensor
        down, up = (part.float() for part in pair)
        scale = 1.0 if self.alpha is None else self.alpha / down.shape[0]
        return torch.addmm(tensor.float(), up, down, alpha=scale)


def read_lora(checkpoint: Mapping[str, Any], path: Path, alpha: float | None = None) -> Lora:
    """The adapter in a checkpoint, under "generator_lora" or by itself. Raises CheckpointError naming what is wrong."""
    section = checkpoint.get(SECTION, checkpoint)
    if not isinstance(section, dict):
        raise CheckpointError(f"{path}: {SECTION} must hold named tensors")
    sides: dict[str, dict[str, Tensor]] = {}
    for name, tensor in original(section, path).items():
        found = NAME.fullmatch(name.removeprefix(PREFIX))
        if found is None:
            raise CheckpointError(f"{path}: {name} is no part of an adapter, whose tensors are lora_A and lora_B")
        sides.setdefault(found["module"], {})[found["side"]] = tensor
    if not sides:
        raise CheckpointError(f"{path} holds no adapter")
    for module, pair in sides.items():
        lacking = {"A", "B"} - set(pair)
        if lacking:
            raise CheckpointError(f"{path}: {module}.lora_{lacking.pop()}.weight is missing")
    return Lora({module: (pair["A"], pair["B"]) for module, pair in sides.items()}, alpha)


def check_lora(lora: Lora, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raises CheckpointError naming an adapter's module that the model does not have, or that has another shape."""
    for module, (down, up) in lora.pairs.items():
        weight = tensors.get(f"{module}.weight")
        if weight is None:
            raise CheckpointError(f"{path} is for another model: it adapts {module}, which is not there")
        if down.dim() != 2 or up.dim() != 2 or (up.shape[0], down.shape[1]) != weight.shape:
            raise CheckpointError(
                f"{path}: {module}'s lora_B · lora_A is {list(up.shape)} · {list(down.shape)}, its weight "
                f"{list(weight.shape)}"
            )
        if up.shape[1] != down.shape[0]:
            raise CheckpointError(f"{path}: {module} has lora_A of rank {down.shape[0]}, lora_B of {up.shape[1]}")
