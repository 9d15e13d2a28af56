"""Which device the model runs on, and what has to be set for its results to repeat there. Knows no model.

A process may be told of a GPU that it must not touch (on ZeroGPU, where only forks of it have one): nothing here
does more than ask torch whether there is one.
"""

from __future__ import annotations

import os

import torch

from .config import ConfigError

DEVICES = ("auto", "cpu", "cuda")
VARIABLE = "ONEGRAPH_DEVICE"
DTYPES = {"auto": None, "bfloat16": torch.bfloat16, "float32": torch.float32}


def pick_device(name: str = "auto") -> torch.device:
    """The device that a name of DEVICES stands for here; "auto" is what $ONEGRAPH_DEVICE says, else a GPU if there is
    one. Raises ConfigError."""
    origin = "the device"
    if name == "auto":
        origin, name = f"{VARIABLE}, the device,", os.environ.get(VARIABLE, "").strip() or "auto"
    if name not in DEVICES:
        raise ConfigError(f"{origin} is {name[:100]!r}; {', '.join(DEVICES)} are allowed")
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise ConfigError("the device cuda was asked for, and torch finds no GPU here")
    device = torch.device("cuda" if there and name != "cpu" else "cpu")
    if device.type == "cuda":  # one way to compute a convolution, not the one that happens to be the fastest today
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    return device


def pick_dtype(name: str = "auto", device: torch.device | str = "cpu") -> torch.dtype:
    """The dtype that a name of DTYPES stands for; "auto": bfloat16 where the device multiplies it in hardware."""
    if (chosen := DTYPES[name]) is not None:
        return chosen
    if torch.device(device).type == "cuda":
        return torch.bfloat16
    supported = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if supported else torch.float32
