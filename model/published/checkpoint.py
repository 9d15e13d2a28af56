"""A PyTorch checkpoint of a causal Wan -> its tensors under Wan's names. Knows no configuration and writes nothing.

Read without ever running code from the file (`weights_only`) and without copying it into memory (`mmap`): tensors are
views of the file until somebody uses them.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compile_cache.errors import CompileCacheError

from ..shards import listed

# Where training code keeps the generator: its moving average, which is what authors sample with, or its last state.
SECTIONS = {"ema": ("generator_ema",), "raw": ("generator", "model")}
# What distributed training, checkpointing and torch.compile leave in names.
WRAPPERS = {"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"}
PREFIX = "model."  # the generator wraps the model
SHOWN = 8  # keys that a message lists


class CheckpointError(CompileCacheError):
    """A checkpoint cannot be read or is not what it should be; the text names the file."""


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The checkpoint's top level. Raises CheckpointError where it is missing, damaged, or holds more than tensors."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    if not zipfile.is_zipfile(path):
        raise CheckpointError(f"{path} is no checkpoint of torch.save: not downloaded whole, or of another format")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f" ({found[1]})" if found else ""
        raise CheckpointError(
            f"{path} holds more than tensors{what} and is not read: that could run code; only plain tensors are allowed"
        ) from None
    except Exception as error:  # a pickle can make the reader raise anything
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path} is damaged or no checkpoint of torch.save: {line[:200]}") from None
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise CheckpointError(f"{path} must hold named tensors")
    return loaded


def pick(checkpoint: Mapping[str, Any], which: str | None, path: Path) -> tuple[str, dict[str, Tensor]]:
    """The chosen section's name ("" for a checkpoint without sections) and its tensors under Wan's names.

    which: a key of SECTIONS; None for the moving average where there is one. Raises CheckpointError.
    """
    wanted = SECTIONS[which] if which else [key for keys in SECTIONS.values() for key in keys]
    section = next((key for key in wanted if isinstance(checkpoint.get(key), dict) and checkpoint[key]), None)
    if section is not None:
        return section, original(checkpoint[section], path)
    if which is None and checkpoint and all(isinstance(value, Tensor) for value in checkpoint.values()):
        return "", original(checkpoint, path)
    raise CheckpointError(
        f"{path} has none of {', '.join(wanted)}; it has {listed(list(checkpoint), SHOWN) or 'nothing'}"
    )


def original(named: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    """Tensors under the names of the original code, without what wraps them. Raises CheckpointError."""
    tensors: dict[str, Tensor] = {}
    for key, value in named.items():
        name = ".".join(part for part in str(key).split(".") if part not in WRAPPERS).removeprefix(PREFIX)
        if not isinstance(value, Tensor):
            raise CheckpointError(f"{path}: {key} is no tensor but {type(value).__name__}")
        if name in tensors:
            raise CheckpointError(f"{path} has the tensor {name} twice")
        tensors[name] = value
    return tensors
