"""Export at full size without weights: python -m tests.benchmarks.export [--layers N] [--size HxW ... | --dynamic]

Both entry points of Wan 2.1 1.3B (or of --model), in bfloat16 on fake tensors, one Markdown row each: how long
torch.export takes, how many operators and graph nodes come out, and what the process needed in memory at most. The
whole model takes minutes; --layers cuts transformer and text encoder short.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.fx.experimental._config as shape_config
from torch import fx

from compile_cache.build import count_ops
from compile_cache.entry import EntryPoint, export_shapes
from model.binary import EXAMPLE_BLOCKS, dynamic_shapes
from model.config import ModelConfig, read_config
from model.hollow import Hollow, hollow
from model.published.presets import WAN_1_3B
from model.service.forms import read_size, size_text


@dataclass(frozen=True)
class Exported:
    program: torch.export.ExportedProgram
    seconds: float
    processor_seconds: float
    operators: int
    nodes: int  # inputs, outputs and subgraphs included


def export(model: Hollow, entry: str, dynamic: bool) -> Exported:
    """As a build exports it; `dynamic`: for every size and room, else for the inputs' own."""
    named = model.inputs[entry]
    dims = dynamic_shapes(model.config).get(entry) if dynamic else None
    point = EntryPoint(entry, model.modules[entry], tuple(named.values()), dims, tuple(named))
    started, worked = time.perf_counter(), time.process_time()
    with torch.no_grad(), shape_config.patch(backed_size_oblivious=True):
        program = torch.export.export(point.module, point.args, dynamic_shapes=export_shapes(point), strict=True)
    seconds, worked = time.perf_counter() - started, time.process_time() - worked
    graphs = [module for module in program.graph_module.modules() if isinstance(module, fx.GraphModule)]
    nodes = sum(len(graph.graph.nodes) for graph in graphs)
    return Exported(program, seconds, worked, sum(count_ops(program.graph_module).values()), nodes)


def shortened(config: ModelConfig, layers: int | None) -> ModelConfig:
    """With at most that many layers in transformer and text encoder; widths stay."""
    if layers is None:
        return config
    text = dict(config.text_encoder)
    text["num_layers"] = min(layers, text["num_layers"])
    transformer = replace(config.transformer, num_layers=min(layers, config.transformer.num_layers))
    return replace(config, transformer=transformer, text_encoder=text)


def peak_memory() -> float:
    """Of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=WAN_1_3B)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--size", nargs="+", help="height x width in pixels (default: all that the model offers)")
    parser.add_argument("--dynamic", action="store_true", help="one export for all sizes")
    args = parser.parse_args()
    config = shortened(read_config(args.model), args.layers)
    sizes = [read_size(size) for size in args.size] if args.size else list(config.rollout.sizes)
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, {config.transformer.num_layers} layers, before it "
          f"{peak_memory():.0f} MB\n")  # fmt: skip
    print("| export | size | seconds | of a processor | operators | nodes | peak memory of the process |")
    print("|---|---|---|---|---|---|---|")
    rows = [("condition", False, sizes[0])]
    rows += [("generate", True, sizes[0])] if args.dynamic else [("generate", False, size) for size in sizes]
    for entry, dynamic, size in rows:
        model = hollow(config, *size, room=EXAMPLE_BLOCKS if dynamic else 1)
        done = export(model, entry, dynamic)
        where = "any" if dynamic or entry == "condition" else size_text(*size)
        cells = (entry, where, f"{done.seconds:.0f}", f"{done.processor_seconds:.0f}", done.operators, done.nodes,
                 f"{peak_memory():.0f} MB")  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
