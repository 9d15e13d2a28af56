"""Wan 2.1 1.3B with random weights on a GPU: eager, torch.compile and AoT in one run.

python -m tests.benchmarks.gpu [--size 480x832] [--precision bfloat16] [--blocks 8] [--model DIR] [--device cuda]

Prints a Markdown table: seconds per block of 12 frames with and without decoding (the difference between 2 and 6
denoising steps prices a forward), time to the first frames, peak memory of the device, the binary's size and build
time, and how far each mode's frames of the first two blocks are from eager's. --model takes another configuration and
--device cpu a machine without a GPU: for trying this script, not for figures.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from compile_cache.store import LocalStore
from model.binary import build, open_parts
from model.config import read_config
from model.parts import Parts
from model.pipeline import Request, generate_inputs, request_tensors
from model.published.presets import WAN_1_3B
from model.runner import Runner
from model.service.forms import read_size
from model.state import new_state
from tests.fixtures.random_parts import random_parts

MODES = ("eager", "jit", "aot")
NAMES = {"eager": "eager", "jit": "torch.compile", "aot": "AoT binary"}
FORWARDS = 5  # of a block at 4 steps
FEW, MANY, REPEATS = 2, 6, 2
SEED = 7


def stream(runner: Runner, parts: Parts, request: Request) -> Iterator[Tensor]:
    """The blocks' frames, made as the pipeline makes them, for random token ids."""
    config, device = parts.config, runner.device
    ids = torch.randint(2, config.text_encoder["vocab_size"], (1, config.rollout.text_length),
                        generator=torch.Generator().manual_seed(SEED))  # fmt: skip
    cross = runner.run("condition", [ids.to(device), torch.ones_like(ids).to(device)])
    state = new_state(config, request.height, request.width, runner.dtype, device)
    fixed = [tensor.to(device) for tensor in request_tensors(config, request)]
    size = (1, config.block_video_frames, request.height, request.width, 3)
    for _ in range(request.blocks):
        frames = torch.zeros(size, dtype=torch.uint8, device=device)
        state.block, _ = runner.run("generate", list(generate_inputs(frames, state, fixed, cross).values()))
        yield frames[0].cpu()  # waits until they are there


def measure(runner: Runner, parts: Parts, request: Request) -> dict:
    """Seconds and bytes; the frames of the first two blocks."""
    cuda = runner.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    blocks = stream(runner, parts, request)
    head = [next(blocks)]
    first = time.perf_counter() - begin
    head.append(next(blocks))

    def later(steps: int) -> float:
        """Seconds of one of a video's later blocks; the fastest of some videos'."""
        best = float("inf")
        for _ in range(REPEATS):
            asked = Request("", SEED, request.blocks, request.height, request.width, steps)
            marks = [time.perf_counter() for _ in stream(runner, parts, asked)]
            best = min(best, (marks[-1] - marks[0]) / (len(marks) - 1))
        return best

    few, default, many = later(FEW), later(4), later(MANY)
    begin = time.perf_counter()
    next(stream(runner, parts, request))
    return {
        "cold": first,
        "first": time.perf_counter() - begin,
        "block": default,
        "forwards": FORWARDS * (many - few) / (MANY - FEW),
        "memory": torch.cuda.max_memory_allocated() if cuda else 0,
        "frames": torch.stack(head).int(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="480x832")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--blocks", type=int, default=8, help="of each video, at least 3")
    parser.add_argument("--model", type=Path, default=WAN_1_3B)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    height, width = read_size(args.size)
    parts = random_parts(read_config(args.model), args.precision, args.device)
    request = Request("", SEED, args.blocks, height, width)
    rows, built = {}, {}
    with tempfile.TemporaryDirectory(prefix="onegraph-benchmark-") as folder:
        for mode in MODES:
            sources = None
            if mode == "aot":
                store, begin = LocalStore(Path(folder)), time.perf_counter()
                entry = build(parts, store, lambda text: print(text, file=sys.stderr, flush=True))
                built, sources = {"seconds": time.perf_counter() - begin, "bytes": entry.manifest.package.size}, [store]
            rows[mode] = measure(open_parts(parts, mode, sources), parts, request)
            print(mode, {k: v for k, v in rows[mode].items() if k != "frames"}, file=sys.stderr, flush=True)
    card = torch.cuda.get_device_name() if parts.device.type == "cuda" else platform.processor() or platform.machine()
    print(f"{card}, torch {torch.__version__}, {args.model.name}, {args.size}, {args.precision}, 4 steps, "
          f"window of {parts.config.rollout.window_blocks} blocks\n")  # fmt: skip
    heads = ["", "s per block", "frames/s", "s per block without decode", "against eager", "s to first frames",
             "the first time", "peak memory", "build", "package", "frames from eager's"]  # fmt: skip
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    eager = rows["eager"]
    for mode, row in rows.items():
        apart = (row["frames"] - eager["frames"]).abs()
        cells = [
            NAMES[mode],
            f"{row['block']:.3f}",
            f"{12 / row['block']:.1f}",
            f"{row['forwards']:.3f}",
            f"{eager['block'] / row['block']:.2f}×",
            f"{row['first']:.2f}",
            f"{row['cold']:.1f}",
            f"{row['memory'] / 1e9:.1f} GB",
            f"{built['seconds']:.0f} s" if mode == "aot" else "–",
            f"{built['bytes'] / 1e6:.2f} MB" if mode == "aot" else "–",
            "–" if mode == "eager" else f"at most {apart.max()}, {apart.float().mean():.3f} on average",
        ]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
