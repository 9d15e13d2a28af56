"""One mode, measured in a fresh process: python -m tests.benchmarks.worker MODE STARTED PRECISION

STARTED is the wall-clock time at which the process was started. Prints one JSON line.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from model.__main__ import EMBEDDED
from model.binary import open_runner
from model.pipeline import Pipeline, Request
from model.service.video import write_mp4

PROMPT = "a big red circle moving right in the snow"
REPEATS = 3
FEW, MANY = 2, 6  # denoising steps: their difference prices one transformer forward


def main(mode: str, started: float, precision: str) -> dict[str, float]:
    pipeline = Pipeline(EMBEDDED, open_runner(EMBEDDED, mode, precision))
    stream = pipeline.stream(Request(PROMPT, 0))
    next(stream)
    first = time.time() - started
    list(stream)

    def seconds(steps: int) -> float:
        """Per block, the fastest of REPEATS videos of 7 blocks."""
        times = []
        for seed in range(REPEATS):
            begin = time.perf_counter()
            blocks = list(pipeline.stream(Request(PROMPT, seed, steps=steps)))
            times.append((time.perf_counter() - begin) / len(blocks))
        return min(times)

    few, default, many = seconds(FEW), seconds(4), seconds(MANY)
    forward = (many - few) / (MANY - FEW)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        frames = [block.frames for block in pipeline.stream(Request(PROMPT, 1))]
        write_mp4(frames, Path(folder) / "video.mp4", pipeline.config.rollout.fps, {})
        finished = time.perf_counter() - begin
    return {
        "first_frames": first,
        "block": default,
        "forwards": 5 * forward,
        "finished": sum(map(len, frames)) / finished,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], float(sys.argv[2]), sys.argv[3])))
