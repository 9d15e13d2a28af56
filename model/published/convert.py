"""Published .pt checkpoints -> a folder in diffusers layout, with safetensors. The command `python -m model convert`.

Reads through checkpoint.py and lora.py, names by wan_names.py, writes through shard_writer.py: at no time is there a
second copy of all weights in memory.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..config import ModelConfig, read_config
from ..progress import Progress, quiet
from ..transformer import CausalWanTransformer
from ..vae import WanVae
from ..weights import check_tensors
from .checkpoint import CheckpointError, pick, read_checkpoint
from .disk import shortage
from .lora import Lora, check_lora, read_lora
from .presets import WAN_1_3B, Preset
from .shard_writer import data_bytes, write_tensors
from .wan_names import original_names, transformer_modules, vae_modules

STEM = "diffusion_pytorch_model"
VAE_SIGN = "decoder.conv1.weight"  # the VAE's checkpoint has no sections; this tells it from a bare transformer
SHARD_BYTES = 5_000_000_000
MARGIN_BYTES = 1_000_000  # for headers, index and configuration


@dataclass(frozen=True)
class Converted:
    """What was written: the folder, which part, from which section, how much."""

    folder: Path
    part: str
    section: str
    tensors: int
    bytes: int
    adapted: int  # modules that an adapter was merged into


def convert(
    source: Path,
    out: Path,
    *,
    which: str | None = None,
    lora: Path | None = None,
    lora_alpha: float | None = None,
    model: Path = WAN_1_3B,
    dtype: torch.dtype = torch.bfloat16,
    shard_bytes: int = SHARD_BYTES,
    preset: Preset | None = None,
    progress: Progress = quiet,
) -> Converted:
    """Write the checkpoint's transformer, or VAE, to `out`/transformer or `out`/vae, its config.json beside it.

    which: "ema", "raw", or None for the moving average where there is one. model: a folder with the configurations
    that the names and shapes must be those of. preset: whose sampling and licence are written to `out`/onegraph.json,
    unless that is there already. progress(bytes written, bytes in all). Raises CheckpointError, ConfigError or
    WeightsError, before anything is written; OSError. What fails leaves no folder behind.
    """
    config = read_config(model)
    section, tensors = pick(read_checkpoint(source), which, source)
    part = "vae" if VAE_SIGN in tensors else "transformer"
    names = _names(config, part)
    if part == "transformer":
        _check_architecture(config, tensors, source)
    check_tensors({wan: shape for wan, (_, shape) in names.items()}, tensors, str(source))
    adapter = Lora({})
    if lora is not None:
        adapter = read_lora(read_checkpoint(lora), lora, lora_alpha)
        check_lora(adapter, tensors, lora)
    back = {ours: (wan, shape) for wan, (ours, shape) in sorted(names.items())}
    shapes = {ours: shape for ours, (_, shape) in back.items()}
    size = sum(data_bytes(shape, dtype) for shape in shapes.values())
    folder = out / part
    short = shortage(out, size + MARGIN_BYTES)
    if short is not None:
        raise CheckpointError(short)
    if folder.exists():
        raise CheckpointError(f"{folder} is there already; name another folder, or remove it")

    def tensor_of(ours: str) -> Tensor:
        wan, _ = back[ours]
        return adapter.merged(wan, tensors[wan])

    out.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{part}-", dir=out))
    try:
        write_tensors(building, STEM, shapes, dtype, tensor_of, shard_bytes, progress)
        shutil.copyfile(model / part / "config.json", building / "config.json")
        building.chmod(0o755)  # mkdtemp's is for its maker only
        if preset is not None:
            _keep_or_write(out / "onegraph.json", building, json.dumps(preset.onegraph(), indent=2) + "\n")
        os.rename(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return Converted(folder, part, section, len(shapes), size, len(adapter.pairs))


def _keep_or_write(file: Path, building: Path, text: str) -> None:
    """The file is there whole, or not at all; one that is there stays, since somebody may have changed it."""
    if not file.exists():
        made = building / file.name
        made.write_text(text, "utf-8")
        os.replace(made, file)


def _names(config: ModelConfig, part: str) -> dict[str, tuple[str, torch.Size]]:
    """Wan's name -> our name and shape, of every tensor of the part."""
    with torch.device("meta"):
        module = CausalWanTransformer(config.transformer) if part == "transformer" else WanVae(config.vae)
    modules = transformer_modules(config.transformer) if part == "transformer" else vae_modules(config.vae)
    shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
    return {wan: (ours, shapes[ours]) for wan, ours in original_names(shapes, modules).items()}


def _check_architecture(config: ModelConfig, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Where it is another model altogether, one sentence instead of hundreds of tensors. Raises CheckpointError."""
    embedding = tensors.get("patch_embedding.weight")
    if embedding is None:
        raise CheckpointError(f"{source} is no Wan transformer: it has no patch_embedding.weight")
    blocks = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    found: Sequence[tuple[str, int, int]] = (
        ("width", embedding.shape[0], config.transformer.width),
        ("input channels", embedding.shape[1] if embedding.dim() > 1 else 0, config.transformer.in_channels),
        ("blocks", blocks, config.transformer.num_layers),
    )
    wrong = [f"{what} {is_}, not {expected}" for what, is_, expected in found if is_ != expected]
    if wrong:
        raise CheckpointError(f"{source} is of another architecture than the configuration: {', '.join(wrong)}")
