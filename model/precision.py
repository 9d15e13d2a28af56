"""In what the model computes: a name, and what it stands for on a device. Knows no model.

int8 and fp8 are how the linear layers of the transformer's blocks multiply (see quantised.py); all the rest, and what
goes from layer to layer, stays in `Precision.dtype`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from .config import ConfigError
from .device import DTYPES, pick_dtype

PRECISIONS = (*DTYPES, "int8", "fp8")
VARIABLE = "ONEGRAPH_PRECISION"
FP8_CAPABILITY = (8, 9)  # Ada, Hopper and Blackwell multiply it


@dataclass(frozen=True)
class Precision:
    name: str  # one of PRECISIONS but "auto"
    dtype: torch.dtype  # of weights and state, but for quantised weights
    linear: str | None = None  # a kind of layers (see quantised.py) in place of the blocks' linear ones


def pick_precision(name: str = "auto", device: torch.device | str = "cpu") -> Precision:
    """What a name of PRECISIONS stands for on a device; "auto" is what $ONEGRAPH_PRECISION says, else bfloat16 where
    the device multiplies it in hardware, else float32. Raises ConfigError."""
    origin = "the precision"
    if name == "auto":
        origin, name = f"{VARIABLE}, the precision,", os.environ.get(VARIABLE, "").strip() or "auto"
    if name not in PRECISIONS:
        raise ConfigError(f"{origin} is {name[:100]!r}; {', '.join(PRECISIONS)} are allowed")
    if name in DTYPES:
        dtype = pick_dtype(name, device)
        return Precision(str(dtype).removeprefix("torch."), dtype)
    if name == "fp8":
        _check_fp8(torch.device(device))
    return Precision(name, pick_dtype("auto", device), linear=name)


def _check_fp8(device: torch.device) -> None:
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if capability is None or capability < FP8_CAPABILITY:
        found = "a CPU" if capability is None else f"a GPU of capability {'.'.join(map(str, capability))}"
        raise ConfigError(f"the precision fp8 needs a GPU of capability 8.9 or more, and the device is {found}")
