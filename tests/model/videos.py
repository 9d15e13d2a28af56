"""Run as a fresh process: python -m tests.model.videos JOB, where JOB is JSON.

Makes every video of the job through one runner and prints a JSON line with their digests (sha256 of the raw frames)
and resident memory. Fields: mode, dtype, threads, blocks_per_call, seeds, sizes, blocks, save (a file, optional).
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch

from model.__main__ import EMBEDDED
from model.binary import open_runner
from model.pipeline import Pipeline, Request

PROMPT = "a big red circle moving right in the snow"


def resident() -> float:
    """Megabytes of memory this process holds now."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def main(job: dict) -> dict:
    torch.set_num_threads(job["threads"])
    pipeline = Pipeline(EMBEDDED, open_runner(EMBEDDED, job["mode"], job["dtype"]))
    digests, memory, kept = {}, [], {}
    for height, width in job["sizes"]:
        for seed in job["seeds"]:
            request = Request(PROMPT, seed, job["blocks"], height, width)
            sha, frames = hashlib.sha256(), []
            for block in pipeline.stream(request, job["blocks_per_call"]):
                sha.update(block.frames.tobytes())
                memory.append(resident())
                if "save" in job:
                    frames.append(block.frames)
            assert block.report.blocks == job["blocks"]
            digests[f"{height}x{width} {seed}"] = sha.hexdigest()
            if frames:
                kept[f"{height}x{width} {seed}"] = np.concatenate(frames)
    if "save" in job:
        np.savez(job["save"], **kept)
    return {"digests": digests, "memory": memory, "mode": pipeline.runner.mode}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
