"""Linear layers that multiply in 8 bits: what `--precision int8` and `fp8` put in place of the blocks' linear layers.

The scheme is torchao's "dynamic activation": a weight's rows are scaled once, when they are loaded, an input's rows at
every call, each row by its largest value; sums are scaled back in float32. The kernels are those that torchao calls.
Not its tensors: they are subclasses, which reach a binary under generated names and with constants that nobody uses,
and importing them takes longer than opening a binary does.

Part of the graph, and so of its key, where it is used. Knows no devices and no files.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

# Whole numbers from -range to range. On a CPU weights use half of what 8 bits hold: a processor without VNNI adds two
# products of a shifted input (up to 255) and a weight in 16 bits, where 2 · 255 · 127 does not fit. The sum is another
# one then, and nothing says so.
INPUT_RANGE, WEIGHT_RANGES = 127, {"cpu": 63, "cuda": 127}
FP8 = torch.float8_e4m3fn
LEAST = 1e-12  # of the largest value in a row: one of zeros stays one of zeros


class Int8Linear(nn.Module):
    """`nn.Linear` with an int8 weight [out, in], of whole numbers from -most to most, and a float32 scale [out].

    A weight is worth weight · scale / (most · √in): so a scale is near 1, as synthetic weights take it to be.
    """

    def __init__(self, linear: nn.Linear, most: int) -> None:
        super().__init__()
        root = math.sqrt(linear.in_features)
        weight = linear.weight.detach().float()
        largest = weight.abs().amax(-1, keepdim=True).clamp(min=LEAST)
        self.register_buffer("weight", (weight * (most / largest)).round().to(torch.int8))
        self.register_buffer("scale", (largest * root).squeeze(-1))
        self.bias = linear.bias
        self.unit = 1 / (INPUT_RANGE * most * root)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2).float()
        largest = rows.abs().amax(-1, keepdim=True).clamp(min=LEAST)
        whole = (rows * (INPUT_RANGE / largest)).round().to(torch.int8)
        sums = torch._int_mm(whole, self.weight.t()).float()
        return _shaped(sums * (largest * self.unit) * self.scale, self.bias, x)


class Fp8Linear(nn.Module):
    """`nn.Linear` with a float8 weight [out, in] and a float32 scale [out]; in and out are multiples of 16."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, top = linear.weight.detach().float(), torch.finfo(FP8).max
        largest = weight.abs().amax(-1, keepdim=True).clamp(min=LEAST)
        self.register_buffer("weight", (weight * (top / largest)).to(FP8))
        self.register_buffer("scale", (largest / top).squeeze(-1))
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        rows, top = x.flatten(0, -2).float(), torch.finfo(FP8).max
        largest = rows.abs().amax(-1, keepdim=True).clamp(min=LEAST)
        narrow = (rows * (top / largest)).to(FP8)
        sums = torch._scaled_mm(narrow, self.weight.t(), largest / top, self.scale[None], out_dtype=torch.bfloat16)
        return _shaped(sums.float(), self.bias, x)


def quantise(module: nn.Module, kind: str, device: str) -> None:
    """Puts layers of a kind, "int8" or "fp8", in place of every `nn.Linear` in `module`, one after the other: there
    are never two copies of all of them. Names stay: `weight` and `bias`, and `scale` is new.

    device: the type of the one where they will be.
    """
    for name, child in module.named_children():
        if not isinstance(child, nn.Linear):
            quantise(child, kind, device)
        elif kind == "fp8":
            setattr(module, name, Fp8Linear(child))
        else:
            setattr(module, name, Int8Linear(child, WEIGHT_RANGES[device]))


def _shaped(sums: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    y = sums if bias is None else sums + bias.float()
    return y.to(x.dtype).view(*x.shape[:-1], y.shape[-1])
