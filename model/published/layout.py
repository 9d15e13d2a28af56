"""Which files make up the parts of a model in diffusers layout.

Knows names; what the settings say is for checks.py, and the weights are checked when they are loaded. A transformer
alone may also lie at the root of its repository.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ..config import read_json
from ..shards import INDEX, index_shards
from ..weights import FILES
from .model_id import ModelError

PARTS = ("transformer", "vae", "text_encoder", "tokenizer")
ROLLOUT = "onegraph.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "spiece.model")
WEIGHTS = ".safetensors"
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
Sizes = Mapping[str, int]  # file's path -> bytes


def find(files: Sizes) -> dict[str, str]:
    """Part -> the folder it is in, as a prefix of its files' names ("" for the root)."""
    found = {part: f"{part}/" for part in PARTS if _whole(part, f"{part}/", files)}
    if "transformer" not in found and not _begun("transformer/", files) and _whole("transformer", "", files):
        found["transformer"] = ""
    return found


def lacking(part: str, files: Sizes) -> str | None:
    """Why a source that has something of a part does not have all of it; None where it has nothing."""
    wanted = [name for name in _needed(part, f"{part}/") if not _there(name, files)]
    nowhere = part == "transformer" and not any(name.endswith(WEIGHTS) for name in files)
    pickles = sorted(name for name in files if name.endswith(PICKLES) and (nowhere or name.startswith(f"{part}/")))
    if pickles and any(name.endswith(WEIGHTS) for name in wanted):
        return f"only pickles ({', '.join(pickles[:2])}), which can run code and are not read"
    return f"no {wanted[0]}" if wanted and _begun(f"{part}/", files) else None


def settings_of(part: str, prefix: str, files: Sizes) -> list[str]:
    """The small files of a part: what it is, where its weights are."""
    if part == "tokenizer":
        return [prefix + name for name in TOKENIZER if prefix + name in files]
    weights = prefix + _weights(part)
    return [f"{prefix}config.json", *([] if weights in files else [weights + INDEX])]


def weights_of(part: str, prefix: str, files: Sizes, folder: Path, source: str) -> list[str]:
    """A part's safetensors files, its settings being in `folder` already. Raises ModelError naming what is missing."""
    if part == "tokenizer":
        return []
    weights = prefix + _weights(part)
    if weights in files:
        return [weights]
    names = sorted(prefix + name for name in index_shards(folder / (weights + INDEX)))
    missing = [name for name in names if name not in files]
    if missing:
        raise ModelError(f"{source} is not complete: {', '.join(missing[:4])} missing, of {len(names)} files")
    return names


def local_files(folder: Path) -> dict[str, int]:
    """The files of a folder, as far as they may belong to a part. Raises ModelError."""
    try:
        places = [folder, *(folder / part for part in PARTS)]
        found = [file for place in places if place.is_dir() for file in place.iterdir() if file.is_file()]
        return {str(PurePosixPath(file.relative_to(folder))): file.stat().st_size for file in found}
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {error.strerror or error}") from None


def read_rollout(path: Path) -> dict[str, Any] | None:
    """The values of an onegraph.json; None where there is none. Raises ConfigError."""
    return read_json(path) if path.is_file() else None


def _weights(part: str) -> str:
    return PurePosixPath(FILES[part]).name


def _needed(part: str, prefix: str) -> Sequence[str]:
    return [prefix + "tokenizer.json"] if part == "tokenizer" else [prefix + "config.json", prefix + _weights(part)]


def _whole(part: str, prefix: str, files: Sizes) -> bool:
    return all(_there(name, files) for name in _needed(part, prefix))


def _there(name: str, files: Sizes) -> bool:
    """Whether a file is there; weights may be so in shards, with an index."""
    return name in files or (name.endswith(WEIGHTS) and name + INDEX in files)


def _begun(prefix: str, files: Sizes) -> bool:
    return any(name.startswith(prefix) for name in files)
