"""`python -m model judge`: makes videos of held-out prompts and lets the judge read them.

Held-out prompts describe combinations of attributes that training never saw. Knows nothing of training.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from model.binary import open_parts
from model.limit_options import add_limit_options, limits_of
from model.parts import load_parts
from model.pipeline import Limits, Pipeline, Report, Request
from model.training import captions
from model.training.judge import load_judge, read
from model.training.world import ATTRIBUTES, Scene, sample_scene

TINY = Path(__file__).parents[1] / "tiny"


def scores(judge_folder: Path, scenes: list[Scene], videos: Iterable[np.ndarray]) -> dict[str, Any]:
    """Shares of right readings: per attribute, all right, per value, and what wrong values were read as."""
    judge = load_judge(judge_folder)
    right = {name: [] for name in ATTRIBUTES}
    by_value: dict[str, dict[str, list[bool]]] = {name: {v: [] for v in values} for name, values in ATTRIBUTES.items()}
    mistakes: Counter[str] = Counter()
    for scene, video in zip(scenes, videos, strict=True):
        seen = read(judge, video)
        for (name, values), label in zip(ATTRIBUTES.items(), scene.labels(), strict=True):
            guess = int(seen[name].argmax())
            right[name].append(guess == label)
            by_value[name][values[label]].append(guess == label)
            if guess != label:
                mistakes[f"{values[label]} read as {values[guess]}"] += 1
    table = np.array(list(right.values()))
    return {
        "n": len(scenes),
        "scores": {name: round(100 * float(np.mean(hits)), 1) for name, hits in right.items()},
        "all": round(100 * float(table.all(axis=0).mean()), 1),
        "by_value": {
            name: {value: f"{sum(hits)}/{len(hits)}" for value, hits in values.items()}
            for name, values in by_value.items()
        },
        "mistakes": dict(mistakes.most_common()),
    }


def score_table(result: dict[str, Any]) -> str:
    """The result as a few lines for people."""
    names = [*result["scores"], "all"]
    cells = [*result["scores"].values(), result["all"]]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines.append("| " + " | ".join(f"{cell:g}" for cell in cells) + " |")
    lines += [f"{count} × {what}" for what, count in result["mistakes"].items()]
    return "\n".join(lines)


def draw_prompts(n: int, seed: int, wording: str) -> tuple[list[Scene], list[str]]:
    """Held-out scenes and a caption of each, canonical or free, with every attribute named."""
    rng, words = np.random.default_rng((seed, 99)), np.random.default_rng((seed, 100))
    scenes = [sample_scene(rng, split="held_out") for _ in range(n)]
    write = captions.canonical if wording == "canonical" else lambda scene: captions.free(scene, words, missing=0.0)
    return scenes, [write(scene) for scene in scenes]


def make_videos(
    pipeline: Pipeline, prompts: list[str], args: argparse.Namespace, limits: Limits | None, reports: list[Report]
) -> Iterator[np.ndarray]:
    """One video per prompt, uint8 [F, H, W, 3], each with a seed of its own; adds what the graph did to `reports`."""
    for index, prompt in enumerate(prompts):
        seed = args.seed * 1_000_003 + index
        blocks = list(pipeline.stream(Request(prompt, seed, args.blocks, steps=args.steps, limits=limits)))
        reports.append(blocks[-1].report)
        yield np.concatenate([block.frames for block in blocks])
        if (index + 1) % 16 == 0 or args.blocks > 20:
            print(f"{index + 1}/{len(prompts)}", file=sys.stderr, flush=True)


def work_done(reports: list[Report]) -> dict[str, float]:
    """Denoising steps per block, those of blocks started again included, and the share of blocks started again."""
    blocks = sum(report.blocks for report in reports)
    steps, again = (sum(getattr(report, name) for report in reports) for name in ("steps", "resampled"))
    return {"steps_per_block": round(steps / blocks, 3), "resampled": round(again / blocks, 4)}


def add_arguments(parser: argparse.ArgumentParser, n: int = 64, blocks: int = 7) -> None:
    parser.add_argument("--n", type=int, default=n, help="number of prompts")
    parser.add_argument("--steps", type=int, default=4, help="denoising steps per block")
    parser.add_argument("--blocks", type=int, default=blocks, help="blocks per video, at least 3")
    add_limit_options(parser)
    parser.add_argument("--seed", type=int, default=0, help="picks prompts and noise")
    parser.add_argument("--wording", choices=("canonical", "free"), default="canonical")
    parser.add_argument("--model", type=Path, default=TINY, help="model folder")
    parser.add_argument("--mode", choices=("auto", "aot", "eager", "jit"), default="auto", help="what runs the graph")
    parser.add_argument("--precision", default="auto", help="auto, bfloat16, float32, int8 or fp8")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def open_pipeline(args: argparse.Namespace) -> tuple[Pipeline, dict[str, str]]:
    """The model folder, ready to run, and what runs it."""
    parts = load_parts(args.model, args.precision)
    runner = open_parts(parts, args.mode)
    return Pipeline(args.model, runner), {"mode": runner.mode, "precision": parts.precision.name}


def run(args: argparse.Namespace) -> int:
    """Score the model folder; prints a table or JSON. Returns the exit status."""
    scenes, prompts = draw_prompts(args.n, args.seed, args.wording)
    pipeline, means = open_pipeline(args)
    started = time.monotonic()
    limits, reports = limits_of(args, pipeline.config.rollout), []
    result = scores(args.model / "judge", scenes, make_videos(pipeline, prompts, args, limits, reports))
    result |= {"steps": args.steps, "blocks": args.blocks, "wording": args.wording, **means, **work_done(reports)}
    result["seconds"] = round(time.monotonic() - started, 1)
    print(json.dumps(result, indent=2) if args.json else score_table(result))
    return 0
