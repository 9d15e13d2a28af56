"""The safetensors files of a part, one or many with an index -> tensors. Knows no model and no names of parts.

A file whose tensors have the wanted dtype is mapped: they are views of it. From any other, tensors are read and
converted piece by piece, so that the file's bytes are never in memory beside the converted ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from compile_cache.errors import shown

from .config import ConfigError, read_json
from .progress import Progress, quiet

INDEX = ".index.json"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
PIECE = 8 * 2**20  # bytes that are read before they are converted
LONGEST_NAME = 200  # characters
MOST_DETAILS = 2000
NAMED = 4  # how many offending names a message lists


class WeightsError(ConfigError):
    """A weights file is missing, damaged, or does not fit the configuration beside it.

    The text names a few tensors; `details` all of them, one a line, up to MOST_DETAILS. Names come out of files of
    others: each is made one printable line here.
    """

    def __init__(self, text: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(shown(text))
        more = (f"and {len(details) - MOST_DETAILS} more",) if len(details) > MOST_DETAILS else ()
        self.details = (*(shown(line, LONGEST_NAME) for line in details[:MOST_DETAILS]), *more)


def read_shards(path: Path, dtype: torch.dtype, progress: Progress = quiet) -> dict[str, Tensor]:
    """The tensors in `path` or, where that file is not there, in the shards that `path`.index.json lists.

    All in `dtype` on the CPU. Raises WeightsError naming the file: missing, damaged or not downloaded whole, an index
    that names files elsewhere, a shard that holds other tensors than the index says.
    """
    files = shard_files(path)
    total, before, tensors = sum(file.stat().st_size for file in files), 0, {}
    piece = torch.empty(PIECE, dtype=torch.uint8)  # one for all: freed and taken anew, they would leave gaps
    for file, expected in files.items():
        read = _read_file(file, dtype, piece, lambda done, before=before: progress(before + done, total))
        _compare(file, expected, read)
        tensors |= read
        before += file.stat().st_size
    progress(total, total)
    return tensors


def shard_files(path: Path) -> dict[Path, set[str] | None]:
    """The files of a part and which tensors each must hold (None: whatever it has). Raises WeightsError."""
    if path.exists():
        return {path: None}
    index = path.with_name(path.name + INDEX)
    if not index.exists():
        raise WeightsError(f"{path} is missing, and so is {index.name}")
    shards = index_shards(index)
    missing = sorted(file for file in shards if not (path.parent / file).exists())
    if missing:
        raise WeightsError(
            f"{listed([str(path.parent / file) for file in missing])} missing: {len(missing)} of the {len(shards)} "
            f"files that {index.name} lists",
            tuple(f"missing: {file}" for file in missing),
        )
    return {path.parent / file: tensors for file, tensors in sorted(shards.items())}


def index_shards(index: Path) -> dict[str, set[str]]:
    """File name -> the tensors in it, by an index. Raises WeightsError where it is none, or leads out of its folder."""
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(file, str) for file in where.values()):
        raise WeightsError(f"{index} has no weight_map from tensors to files")
    shards: dict[str, set[str]] = {}
    for tensor, file in where.items():
        if Path(file).name != file or not file.endswith(".safetensors"):
            named, other = shown(tensor, LONGEST_NAME), shown(file, LONGEST_NAME)
            raise WeightsError(f"{index} says that {named} is in {other!r}, which is no safetensors file beside it")
        shards.setdefault(file, set()).add(tensor)
    return shards


def listed(names: list[str], most: int = NAMED) -> str:
    """At most so many of the names, each one printable line, and how many more there are."""
    return ", ".join(shown(name, LONGEST_NAME) for name in names[:most]) + (
        f" and {len(names) - most} more" if len(names) > most else ""
    )


def _compare(path: Path, expected: set[str] | None, tensors: Mapping[str, Tensor]) -> None:
    if expected is None or expected == set(tensors):
        return
    parts = {"missing": sorted(expected - set(tensors)), "unexpected": sorted(set(tensors) - expected)}
    said = "; ".join(f"{kind}: {listed(names)}" for kind, names in parts.items() if names)
    details = tuple(f"{kind}: {name}" for kind, names in parts.items() for name in names)
    raise WeightsError(f"{path} does not hold what its index says: {said}", details)


def _read_file(path: Path, dtype: torch.dtype, piece: Tensor, told: Callable[[int], None]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    done = 0
    try:
        # Opening checks the header: sizes, places without gaps or overlaps, and that the file is as long as it says.
        with safe_open(path, framework="pt") as file, path.open("rb") as raw:
            header, start = _header(raw)
            for name in file.keys():  # noqa: SIM118 (not a dict)
                stored = DTYPES.get(header[name]["dtype"])
                if stored is None:
                    kind, read = header[name]["dtype"], ", ".join(DTYPES)
                    raise WeightsError(f"{path}: {shown(name, LONGEST_NAME)} is stored as {kind}; {read} are read")
                if stored == dtype:
                    tensors[name] = file.get_tensor(name)
                else:
                    raw.seek(start + header[name]["data_offsets"][0])
                    tensors[name] = _converted(raw, piece.view(stored), header[name]["shape"], dtype)
                begin, end = header[name]["data_offsets"]
                done += end - begin
                told(done)
    except (SafetensorError, OSError) as error:
        line = (str(error).splitlines() or [""])[0]
        raise WeightsError(f"{path} is damaged, not downloaded whole, or no safetensors file: {line[:200]}") from None
    return tensors


def _header(file: BinaryIO) -> tuple[dict, int]:
    """The header of a file that was checked, and where its data begins."""
    length = int.from_bytes(file.read(8), "little")
    return json.loads(file.read(length)), 8 + length


def _converted(file: BinaryIO, piece: Tensor, shape: list[int], dtype: torch.dtype) -> Tensor:
    """The tensor of `piece`'s dtype that begins where `file` is, read through `piece`, in `dtype`."""
    tensor = torch.empty(shape, dtype=dtype)
    flat = tensor.view(-1)
    for start in range(0, flat.numel(), piece.numel()):
        part = piece[: flat.numel() - start]
        if file.readinto(part.view(torch.uint8).numpy()) != part.nbytes:
            raise OSError("it ended while it was read")
        flat[start : start + part.numel()] = part
    return tensor
