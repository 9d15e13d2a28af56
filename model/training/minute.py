"""`python -m model minute`: does a video of a minute stay what it was in its first seconds?

Compares the last blocks with the first: what the judge reads, how sharp the object's edge is, and whether frames jump
where one block ends and the next begins. Knows nothing of training.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from model.limit_options import limits_of
from model.training import evaluate
from model.training.clips import background
from model.training.judge import Judge, load_judge, read
from model.training.world import ATTRIBUTES, BACKGROUND_PERIOD, BACKGROUNDS, Scene

ENDS = 10  # blocks at either end that are compared
BLOCK = 12  # frames; a video's first block has 3 fewer
APART = 40  # levels by which a pixel differs from every moment of the empty scene where the object is


def object_mask(frames: np.ndarray, scene: Scene) -> np.ndarray:
    """Where the object is, bool [F, H, W], from frames uint8 [F, H, W, 3]: what the empty scene never looks like."""
    name, (height, width) = BACKGROUNDS[scene.background], frames.shape[1:3]
    empty = np.stack([background(name, height, width, t) for t in range(0, BACKGROUND_PERIOD, 4)]).astype(np.int16)
    low, high = empty.min(0), empty.max(0)
    apart = np.maximum(low - frames.astype(np.int16), frames.astype(np.int16) - high)
    return apart.max(-1) > APART


def edge_energy(frames: np.ndarray, scene: Scene) -> float:
    """Mean squared gradient of the colours within five pixels of the object's outline, where its rim is too."""
    mask = torch.from_numpy(object_mask(frames, scene))[:, None].float()
    near = F.max_pool2d(mask, 11, 1, 5) + F.max_pool2d(-mask, 11, 1, 5) > 0  # inside for one, outside for another
    video = torch.from_numpy(frames).permute(0, 3, 1, 2).float()
    energy = sum((video - video.roll(1, axis)).square().mean(1, keepdim=True) for axis in (2, 3))
    return float(energy[near].mean()) if near.any() else 0.0


def boundary_change(frames: np.ndarray) -> tuple[float, float]:
    """Mean change from frame to frame where blocks meet, and the median of all changes, in levels."""
    changes = np.array([np.abs(after.astype(np.int16) - before).mean() for before, after in pairwise(frames)])
    meet = np.arange(BLOCK - 4, len(changes), BLOCK)  # frame 9 is the first of block 1
    return float(changes[meet].mean()), float(np.median(changes))


def measure(judge: Judge, scene: Scene, frames: np.ndarray) -> dict[str, Any]:
    """The two ends of one video uint8 [F, H, W, 3]: what is right at each, the edge's energy, and the jumps."""
    ends = {"first": frames[: ENDS * BLOCK - 3], "last": frames[-ENDS * BLOCK :]}
    result: dict[str, Any] = {"change": boundary_change(frames)}
    for name, part in ends.items():
        seen = read(judge, part)
        result[name] = [int(seen[a].argmax()) == label for a, label in zip(ATTRIBUTES, scene.labels(), strict=True)]
        result[f"{name} edge"] = edge_energy(part, scene)
    return result


def summary(measured: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares of right readings at both ends in percent; edge, jump: ratios of means over all videos."""
    ends = {end: np.mean([m[end] for m in measured], axis=0) * 100 for end in ("first", "last")}
    table = {end: dict(zip(ATTRIBUTES, np.round(values, 1).tolist(), strict=True)) for end, values in ends.items()}
    edges = [np.mean([m[f"{end} edge"] for m in measured]) for end in ("first", "last")]
    meet, usual = np.mean([m["change"] for m in measured], axis=0)
    return {
        "n": len(measured),
        **table,
        "edge": round(float(edges[1] / edges[0]), 3),
        "jump": round(float(meet / usual), 3),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    evaluate.add_arguments(parser, n=16, blocks=80)


def score(judge_folder: Path, scenes: list[Scene], videos: Iterable[np.ndarray]) -> dict[str, Any]:
    judge = load_judge(judge_folder)
    return summary([measure(judge, scene, video) for scene, video in zip(scenes, videos, strict=True)])


def run(args: argparse.Namespace) -> int:
    """Make the videos and print the comparison, as a table or JSON. Returns the exit status."""
    scenes, prompts = evaluate.draw_prompts(args.n, args.seed, args.wording)
    pipeline, means = evaluate.open_pipeline(args)
    limits = limits_of(args, pipeline.config.rollout)
    result = score(args.model / "judge", scenes, evaluate.make_videos(pipeline, prompts, args, limits, []))
    result |= {"steps": args.steps, "blocks": args.blocks, **means}
    if args.json:
        print(json.dumps(result, indent=2))
        return 0
    print("| blocks | " + " | ".join(ATTRIBUTES) + " |", "|" + "---|" * (len(ATTRIBUTES) + 1), sep="\n")
    for end in ("first", "last"):
        cells = " | ".join(f"{value:g}" for value in result[end].values())
        print(f"| {end} {ENDS} of {args.blocks} | {cells} |")
    print(f"edge energy, last to first: {result['edge']}; change where blocks meet to the median: {result['jump']}")
    return 0
