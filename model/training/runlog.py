"""A training run on disk: a JSON-lines log and checkpoints that can be resumed. Knows nothing of what is trained.

The schedule is a number of steps, not of minutes, and the data of a step depends on (seed, step) only, so that a
run is the same whether it was interrupted or not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch


class Run:
    """One run in one folder, of `steps` steps."""

    def __init__(self, args: argparse.Namespace, checkpoint_seconds: float = 60.0) -> None:
        """`args` has the options of add_run_arguments."""
        self.folder, self.steps, self.seed, self.every = args.run, args.steps, args.seed, checkpoint_seconds
        self.stop = min(args.stop or args.steps, args.steps)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.step, self._spent = 0, 0.0
        self._started = self._saved = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds trained so far, over all resumptions."""
        return self._spent + time.monotonic() - self._started

    @property
    def share(self) -> float:
        """How much of the schedule is done, 0..1."""
        return self.step / self.steps

    def rng(self, stream: int = 0) -> np.random.Generator:
        """The random numbers of the present step."""
        return np.random.default_rng((self.seed, stream, self.step))

    def resume(self) -> dict[str, Any] | None:
        """The last checkpoint's state, or None where there is none."""
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return None
        state = torch.load(path, weights_only=True)
        self.step, self._spent = state["step"], state["seconds"]
        self._started = self._saved = time.monotonic()
        return state

    def due(self) -> bool:
        """Whether a checkpoint should be written now."""
        return self.step >= self.stop or time.monotonic() - self._saved > self.every

    def save(self, **state: Any) -> None:
        """Write a checkpoint in the place of the last, atomically."""
        path = self.folder / "checkpoint.pt"
        torch.save({"step": self.step, "seconds": self.seconds, **state}, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)
        self._saved = time.monotonic()

    def log(self, **values: Any) -> None:
        """One line in log.jsonl and on stderr."""
        row: dict[str, Any] = {"step": self.step, "seconds": round(self.seconds, 1)}
        row |= {name: round(value, 5) if isinstance(value, float) else value for name, value in values.items()}
        with (self.folder / "log.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), file=sys.stderr, flush=True)


def add_run_arguments(parser: argparse.ArgumentParser, *, steps: int, folder: str) -> None:
    """The options that every training command has."""
    parser.add_argument("--run", type=Path, default=Path(folder), help="folder of the log and the checkpoint")
    parser.add_argument("--steps", type=int, default=steps, help="length of the schedule")
    parser.add_argument("--stop", type=int, help="stop after this step; the schedule stays as it is")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
