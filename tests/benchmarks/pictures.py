"""The README's pictures, made by the shipped weights: python -m tests.benchmarks.pictures FOLDER

samples.png has a row per prompt, frames from the first to the last of a 7-block video. clips.webp plays them side by
side, in the order of the rows: four above, four below.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from model.__main__ import EMBEDDED
from model.binary import open_runner
from model.pipeline import Pipeline, Request

PROMPTS = [
    "a big red heart bouncing in a meadow",
    "a small yellow star circling at night",
    "a medium blue square moving right in the snow",
    "a big pink moon growing at sunset",
    "a medium green circle moving up and left in the sky",
    "a big purple ring shrinking in the desert",
    "a medium orange cross spinning at sea",
    "a big white triangle standing still in the city",
]
COLUMNS = 8  # frames of a prompt in samples.png
ACROSS = 4  # prompts side by side in clips.webp


def contact_sheet(videos: list[np.ndarray]) -> np.ndarray:
    """Videos uint8 [F, H, W, 3] -> one picture [len(videos)·H, COLUMNS·W, 3]."""
    chosen = np.linspace(0, len(videos[0]) - 1, COLUMNS).round().astype(int)
    return np.concatenate([np.concatenate(list(video[chosen]), axis=1) for video in videos])


def side_by_side(videos: list[np.ndarray]) -> np.ndarray:
    """Videos uint8 [F, H, W, 3] -> one video, ACROSS of them in a row."""
    rows = [np.concatenate(videos[i : i + ACROSS], axis=2) for i in range(0, len(videos), ACROSS)]
    return np.concatenate(rows, axis=1)


def main(folder: Path) -> None:
    pipeline = Pipeline(EMBEDDED, open_runner(EMBEDDED, "auto"))
    videos = [
        np.concatenate([block.frames for block in pipeline.stream(Request(prompt, seed))])
        for seed, prompt in enumerate(PROMPTS)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(contact_sheet(videos)).save(folder / "samples.png", optimize=True)
    first, *rest = map(Image.fromarray, side_by_side(videos))
    milliseconds = round(1000 / pipeline.config.rollout.fps)
    first.save(
        folder / "clips.webp", save_all=True, append_images=rest, duration=milliseconds, loop=0, quality=70, method=6
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
