"""How much memory loading takes, beside the weights themselves: python -m tests.benchmarks.loading.

Random weights of a transformer are written to a temporary folder, in bfloat16 and in float32 shards. A fresh process
reads each as bfloat16, uses every number, and tells its peak; another converts a .pt checkpoint.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import nn

from model.__main__ import EMBEDDED
from model.config import ModelConfig, TransformerConfig, from_mapping, read_config, read_json
from model.published.convert import convert
from model.published.presets import WAN_1_3B
from model.published.shard_writer import write_tensors
from model.published.wan_names import original_names, transformer_modules
from model.transformer import CausalWanTransformer
from model.weights import load_transformer, read_tensors
from tests.benchmarks.resident import from_here, status

STEM = "diffusion_pytorch_model"
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def configured(megabytes: int) -> TransformerConfig:
    """Wan 1.3B's width with as many blocks as make about so many megabytes in bfloat16: 93 each and 52 beside them."""
    return replace(read_config(WAN_1_3B).transformer, num_layers=max(round((megabytes - 52) / 93), 1))


def shapes_of(config: TransformerConfig) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in CausalWanTransformer(config).state_dict().items()}


def write_folder(folder: Path, config: TransformerConfig, dtype: torch.dtype) -> None:
    """A transformer of random numbers, in shards."""
    shapes = shapes_of(config)
    part = folder / "transformer"
    part.mkdir(parents=True)
    (part / "config.json").write_text(json.dumps(asdict(config)))
    write_tensors(part, STEM, shapes, dtype, lambda name: torch.randn(shapes[name]), 2 * 10**8)


def write_checkpoint(folder: Path, config: TransformerConfig) -> None:
    """A .pt checkpoint in float32, in a folder with the configuration it has."""
    shutil.copytree(WAN_1_3B, folder)
    (folder / "transformer" / "config.json").write_text(json.dumps(asdict(config)))
    names = original_names(shapes := shapes_of(config), transformer_modules(config))
    torch.save({"generator_ema": {f"model.{wan}": torch.randn(shapes[ours]) for wan, ours in names.items()}},
               folder / "in.pt")  # fmt: skip


def child_load(folder: Path) -> dict[str, float]:
    """In a process of its own: peak of resident memory while loading and using, against the weights' size."""
    parts = read_config(WAN_1_3B)
    own = from_mapping(TransformerConfig, read_json(folder / "transformer" / "config.json"), "config.json")
    _load(EMBEDDED, read_config(EMBEDDED))  # imports, and maps, what that takes
    before = from_here()
    module = _load(folder, replace(parts, transformer=own))
    weights = sum(parameter.nbytes for parameter in module.parameters())
    return {"weights": weights, "peak": status("VmHWM") - before}


def _load(folder: Path, config: ModelConfig) -> nn.Module:
    module = load_transformer(config, read_tensors(folder, "transformer", torch.bfloat16))
    for parameter in module.parameters():
        parameter.view(-1).max()  # every page is read
    return module


def child_convert(folder: Path) -> dict[str, float]:
    """The same for `convert`: its own memory (that of the mapped checkpoint is the system's to take back)."""
    peak = []
    before = status("RssAnon")
    made = convert(folder / "in.pt", folder / "out", model=folder, progress=lambda *_: peak.append(status("RssAnon")))
    return {"weights": made.bytes, "peak": max(peak) - before}


CHILDREN = {"load": child_load, "convert": child_convert}


def measure(kind: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.loading", "--child", kind, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=400, help="of weights in bfloat16")
    parser.add_argument("--child", nargs=2, metavar=("KIND", "DIR"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(CHILDREN[args.child[0]](Path(args.child[1]))))
        return
    config = configured(args.megabytes)
    print("| from | weights in bfloat16 | peak beside the process before | ratio |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        for name, dtype in DTYPES.items():
            folder = Path(temporary) / name
            write_folder(folder, config, dtype)
            row(f"{name} safetensors", measure("load", folder))
            shutil.rmtree(folder)
        write_checkpoint(Path(temporary) / "pt", config)
        row("float32 .pt, converted", measure("convert", Path(temporary) / "pt"))


def row(name: str, measured: dict[str, float]) -> None:
    weights, peak = measured["weights"], measured["peak"]
    print(f"| {name} | {weights / 1e6:.0f} MB | {peak / 1e6:.0f} MB | {peak / weights:.3f} |")


if __name__ == "__main__":
    main()
