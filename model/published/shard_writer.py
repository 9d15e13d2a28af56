"""Writes safetensors files tensor by tensor, so that no more than one tensor is in memory. Knows no model.

The libraries' own functions take all tensors at once. The format: the header's length (8 bytes), the header (JSON with
each tensor's dtype, shape and place), the data.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..progress import Progress, quiet

DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
ALIGNMENT = 8


def data_bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    return torch.Size(shape).numel() * dtype.itemsize


def write_tensors(
    folder: Path,
    stem: str,
    shapes: Mapping[str, Sequence[int]],
    dtype: torch.dtype,
    tensor_of: Callable[[str], Tensor],
    shard_bytes: int,
    progress: Progress = quiet,
) -> list[Path]:
    """Write `stem`.safetensors, or as many shards of at most `shard_bytes` and an index; the files.

    tensor_of(name) is asked once for each tensor, in order. A tensor larger than a shard is one of its own.
    """
    shards: list[dict[str, Sequence[int]]] = [{}]
    room = shard_bytes
    for name, shape in shapes.items():
        size = data_bytes(shape, dtype)
        if size > room and shards[-1]:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = shape
        room -= size
    total, done = sum(data_bytes(shape, dtype) for shape in shapes.values()), 0
    files, where = [], {}
    for index, shard in enumerate(shards, 1):
        suffix = "" if len(shards) == 1 else f"-{index:05}-of-{len(shards):05}"
        path = folder / f"{stem}{suffix}.safetensors"
        with path.open("wb") as file:
            file.write(_header(shard, dtype))
            for name, shape in shard.items():
                file.write(_bytes(name, tensor_of(name), shape, dtype))
                where[name] = path.name
                done += data_bytes(shape, dtype)
                progress(done, total)
            file.flush()
            os.fsync(file.fileno())
        files.append(path)
    if len(shards) > 1:
        index_file = folder / f"{stem}.safetensors.index.json"
        index_file.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2) + "\n")
        files.append(index_file)
    return files


def _header(shapes: Mapping[str, Sequence[int]], dtype: torch.dtype) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, shape in shapes.items():
        end = place + data_bytes(shape, dtype)
        header[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes(name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype) -> memoryview:
    if list(tensor.shape) != list(shape):
        raise ValueError(f"{name} is {list(tensor.shape)}, not {list(shape)}")
    return memoryview(tensor.to(dtype).contiguous().view(-1).view(torch.uint8).numpy())
