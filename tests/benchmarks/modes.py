"""Eager, torch.compile and AoT side by side: python -m tests.benchmarks.modes [--precision auto|bfloat16|float32|int8]

Each mode runs in a fresh process on an empty compiler cache; the binary is compiled first, in a process of its own,
into an empty store. Prints a Markdown table. Times are wall-clock, of the fastest of three runs where they repeat.
Takes about ten minutes on two cores; run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

BLOCK_FRAMES = 12
FPS = 16
NAMES = {"eager": "eager", "jit": "torch.compile, cold", "aot": "AoT binary"}


def run(arguments: list[str], folder: Path) -> dict:
    """The last line of a fresh process' output, as JSON. The caches of compilers and binaries lie in `folder`."""
    caches = {"ONEGRAPH_CACHE": str(folder / "store"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, env={**os.environ, **caches}, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(mode: str, precision: str, folder: Path) -> dict[str, float]:
    if mode != "aot":
        return run(["tests.benchmarks.worker", mode, str(time.time()), precision], folder)
    built = run(["model", "compile", "--precision", precision, "--json"], folder)
    figures = run(["tests.benchmarks.worker", mode, str(time.time()), precision], folder)
    return figures | {"compile": built["seconds"], "package": built["bytes"] / 1e6}


def row(mode: str, figures: dict[str, float], eager: dict[str, float], cold: dict[str, float]) -> str:
    with_decode, without = BLOCK_FRAMES / figures["block"], BLOCK_FRAMES / figures["forwards"]
    cells = [
        NAMES[mode],
        f"{figures['first_frames']:.1f} s",
        f"{cold['first_frames'] / figures['first_frames']:.0f}×",
        f"{with_decode:.0f}",
        f"{without:.0f}",
        f"{eager['block'] / figures['block']:.2f}×",
        f"{figures['finished']:.0f} ({figures['finished'] / FPS:.1f}× playback)",
        f"{figures['compile']:.0f} s" if "compile" in figures else "at first use" if mode == "jit" else "–",
        f"{figures['package']:.2f} MB" if "package" in figures else "–",
        f"{figures['memory']:.0f} MB",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=("auto", "bfloat16", "float32", "int8"), default="auto")
    precision = parser.parse_args().precision
    results = {}
    for mode in NAMES:
        with tempfile.TemporaryDirectory(prefix="onegraph-benchmark-") as folder:
            results[mode] = measure(mode, precision, Path(folder))
            print(f"{mode}: {results[mode]}", file=sys.stderr)
    heads = ["", "process start to first frames", "sooner than torch.compile", "frames/s with decode",
             "frames/s without", "against eager", "frames/s to finished mp4", "compile time", "package",
             "peak memory"]  # fmt: skip
    machine = f"torch {torch.__version__}, {os.cpu_count()} cores, {platform.machine()}"
    print(f"{machine}, precision {precision}, 128×128, 4 steps\n")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for mode, figures in results.items():
        print(row(mode, figures, results["eager"], results["jit"]))


if __name__ == "__main__":
    main()
