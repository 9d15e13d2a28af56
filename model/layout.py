"""Which files make up the parts of a model in diffusers layout, and whether their settings are ones we can run.

Knows names and JSON; the weights themselves are checked when they are loaded. A transformer alone may also lie at the
root of its repository.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from .config import TransformerConfig, VaeConfig, from_mapping, read_json
from .model_id import ModelError
from .shards import INDEX, index_shards
from .weights import FILES

PARTS = ("transformer", "vae", "text_encoder", "tokenizer")
ROLLOUT = "onegraph.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "spiece.model")
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
CLASSES = {  # what a part's config.json may call itself
    "transformer": ("WanTransformer3DModel", "CausalWanTransformer3DModel"),
    "vae": ("AutoencoderKLWan",),
    "text_encoder": ("UMT5EncoderModel",),
}
Sizes = Mapping[str, int]  # file's path -> bytes


def find(files: Sizes) -> dict[str, str]:
    """Part -> the folder it is in, as a prefix of its files' names ("" for the root)."""
    found = {part: f"{part}/" for part in PARTS if _whole(part, f"{part}/", files)}
    if "transformer" not in found and not _begun("transformer/", files) and _whole("transformer", "", files):
        found["transformer"] = ""
    return found


def lacking(part: str, files: Sizes) -> str | None:
    """Why a source that has something of a part does not have all of it; None where it has nothing."""
    begun = _begun(f"{part}/", files)
    nowhere = part == "transformer" and not any(name.endswith(".safetensors") for name in files)
    pickles = sorted(name for name in files if name.endswith(PICKLES) and (nowhere or name.startswith(f"{part}/")))
    if pickles:
        return f"only pickles ({', '.join(pickles[:2])}), which can run code and are not read"
    wanted = [name for name in _needed(part, f"{part}/") if name not in files and name + INDEX not in files]
    return f"no {wanted[0]}" if begun and wanted else None


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


def check(folders: Mapping[str, Path], sources: Mapping[str, str]) -> None:
    """Raises ModelError where the parts are not of a model we run, or do not fit each other; ConfigError."""
    configs = {part: read_json(folders[part] / "config.json") for part in CLASSES}
    for part, allowed in CLASSES.items():
        named = configs[part].get("_class_name") or (configs[part].get("architectures") or [None])[0]
        if named is not None and named not in allowed:
            raise ModelError(f"{sources[part]} has another architecture: its {part} is {named}, not {allowed[0]}")
    transformer, vae, text = (configs[part] for part in CLASSES)
    for field in ("image_dim", "added_kv_proj_dim"):
        if transformer.get(field) is not None:
            raise ModelError(f"{sources['transformer']} has another architecture: a transformer that takes images")
    ours = from_mapping(TransformerConfig, transformer, f"{sources['transformer']}: transformer/config.json")
    latents = from_mapping(VaeConfig, vae, f"{sources['vae']}: vae/config.json").z_dim
    _fit("channels", ours.in_channels, sources["transformer"], latents, sources["vae"])
    _fit("text channels", ours.text_dim, sources["transformer"], text.get("d_model"), sources["text_encoder"])


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


def _fit(what: str, ours: int, whose: str, theirs: object, other: str) -> None:
    if theirs != ours:
        raise ModelError(f"the parts do not fit each other: {ours} {what} in {whose}, {theirs} in {other}")


def _weights(part: str) -> str:
    return PurePosixPath(FILES[part]).name


def _needed(part: str, prefix: str) -> Sequence[str]:
    return [prefix + "tokenizer.json"] if part == "tokenizer" else [prefix + "config.json", prefix + _weights(part)]


def _whole(part: str, prefix: str, files: Sizes) -> bool:
    return all(name in files or name + INDEX in files for name in _needed(part, prefix))


def _begun(prefix: str, files: Sizes) -> bool:
    return any(name.startswith(prefix) for name in files)
