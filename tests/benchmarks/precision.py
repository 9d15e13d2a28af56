"""What each precision costs and gives: python -m tests.benchmarks.precision [--n 64] [--compile]

Per precision, for the embedded model: bytes of weights, distance of one forward from float32 (relative L2, the mean of
the sampler's noise levels), the judge's scores, and the binary if one is in the cache. Prints a Markdown table. What
has no binary is judged eagerly; --compile builds the missing ones first, some minutes each. Judging 64 prompts takes
from two minutes (compiled) to ten (float32, eagerly) on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

import torch
from torch import Tensor

from compile_cache.eager import distance
from compile_cache.errors import CompileCacheError
from compile_cache.key import key_of
from compile_cache.specs import constants_of
from compile_cache.store import LocalStore
from model.__main__ import EMBEDDED
from model.binary import binary_fields, build
from model.parts import Parts, load_parts

PRECISIONS = ("float32", "bfloat16", "int8")
TIMESTEPS = (1000.0, 750.0, 500.0, 250.0)


@torch.no_grad()
def forward(parts: Parts) -> list[Tensor]:
    """The flow of one block at each of TIMESTEPS, for fixed noise in place of latents and of text."""
    config, generator = parts.config, torch.Generator().manual_seed(0)
    frames, channels = config.rollout.block_frames, config.transformer.in_channels
    side = config.rollout.sizes[0][0] // config.vae.spatial_factor
    latents = torch.randn(1, channels, frames, side, side, generator=generator).to(parts.dtype)
    text = torch.randn(1, config.rollout.text_length, config.transformer.text_dim, generator=generator).to(parts.dtype)
    seen = torch.ones(frames, frames, dtype=torch.bool)
    run = parts.generate.transformer
    return [run(latents, torch.full((1, frames), t), text, torch.arange(frames), seen) for t in TIMESTEPS]


def judged(precision: str, prompts: int) -> dict:
    """In a fresh process."""
    command = [sys.executable, "-m", "model", "judge", "--n", str(prompts), "--precision", precision, "--json"]
    done = subprocess.run(command, env=dict(os.environ), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def row(precision: str, prompts: int, exact: list[Tensor]) -> list[str]:
    parts, store = load_parts(EMBEDDED, precision, "cpu"), LocalStore()
    inside = constants_of(parts.generate.transformer.blocks).values()
    blocks = sum(tensor.numel() * tensor.element_size() for tensor in inside)
    apart = sum(distance(one, other) for one, other in zip(exact, forward(parts), strict=True)) / len(exact)
    key = key_of(binary_fields(parts))
    try:
        entry = store.find(key)
    except CompileCacheError:
        entry = None
    result = judged(precision, prompts)
    return [
        precision,
        f"{parts.size / 1e6:.1f} MB",
        f"{blocks / 1e6:.1f} MB",
        f"{apart:.2g}" if apart else "–",
        *(f"{score:g}" for score in (*result["scores"].values(), result["all"])),
        result["mode"],
        f"{result['seconds']:.0f} s",
        key[:12],
        f"{entry.manifest.package.size / 1e6:.2f} MB" if entry else "–",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=64, help="prompts to judge by")
    parser.add_argument("--compile", action="store_true", help="build the binaries that are missing")
    parser.add_argument("--precision", nargs="*", choices=PRECISIONS, default=PRECISIONS, help="by default all")
    options = parser.parse_args()
    if options.compile:
        for precision in options.precision:
            build(load_parts(EMBEDDED, precision, "cpu"), progress=lambda text: print(text, file=sys.stderr))
    from model.training.world import ATTRIBUTES

    heads = ["", "weights", "of them blocks", "one forward, from float32", *ATTRIBUTES, "all", "judged", "in", "key",
             "package"]  # fmt: skip
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    exact = forward(load_parts(EMBEDDED, "float32", "cpu"))
    for precision in options.precision:
        print(f"| {' | '.join(row(precision, options.n, exact))} |", flush=True)


if __name__ == "__main__":
    main()
