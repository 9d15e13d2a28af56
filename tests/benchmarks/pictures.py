"""The README's contact sheet, made by the shipped weights: python -m tests.benchmarks.pictures OUT.png

One row per prompt, frames from the first to the last of a 7-block video.
"""

from __future__ import annotations

import sys

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
COLUMNS = 8


def main(out: str) -> None:
    pipeline = Pipeline(EMBEDDED, open_runner(EMBEDDED, "auto"))
    rows = []
    for seed, prompt in enumerate(PROMPTS):
        video = np.concatenate([block.frames for block in pipeline.stream(Request(prompt, seed))])
        chosen = np.linspace(0, len(video) - 1, COLUMNS).round().astype(int)
        rows.append(np.concatenate(list(video[chosen]), axis=1))
    Image.fromarray(np.concatenate(rows)).save(out, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1])
