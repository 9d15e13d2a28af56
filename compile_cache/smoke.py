"""A trial run of a package in a child process, so that one that crashes takes nothing with it.

Parent: `run_smoke`. Child: `python -m compile_cache.smoke JOB`, which reads the job's folder and prints
one JSON line. The child runs on one CPU thread, so that the digest does not depend on the machine's
number of cores.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from compile_cache import scratch
from compile_cache.binary import open_binary
from compile_cache.errors import CompileCacheError, SmokeFailed
from compile_cache.manifest import Manifest, parse
from compile_cache.specs import dtype_name


@dataclass(frozen=True)
class Call:
    """One reference call. A tensor object used in several calls is one tensor there too: state is carried on."""

    entry_point: str
    inputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class WeightsFrom:
    """Weights that the child loads itself: `function` ("package.module:name") is called with `arguments`
    (JSON-able keyword arguments) and returns entry point -> name -> tensor. For weights too big to copy.
    """

    function: str
    arguments: Mapping[str, Any]


Weights = Mapping[str, Mapping[str, Tensor]] | WeightsFrom


@dataclass(frozen=True)
class SmokeResult:
    """digest: sha256 over all outputs and inputs after each call; outputs on the CPU, per call; seconds in all."""

    digest: str
    outputs: tuple[tuple[Tensor, ...], ...]
    seconds: float


def run_smoke(
    package: Path, manifest: Manifest, calls: Sequence[Call], weights: Weights, *, timeout: float = 900.0
) -> SmokeResult:
    """Loads and runs the package in a child. `timeout` in seconds.

    Raises SmokeFailed when the child dies, takes too long or reports an error.
    """
    started = time.monotonic()
    with scratch.folder() as folder:
        _write_job(folder, package, manifest, calls, weights)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "compile_cache.smoke", str(folder)]
        # Output into files: a crash may print much, and a pipe nobody reads would stall the child.
        with (folder / "out").open("w+b") as out, (folder / "err").open("w+b") as err:
            try:
                done = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, timeout=timeout
                )
            except subprocess.TimeoutExpired:
                raise SmokeFailed(f"the trial run took longer than {timeout:.0f} s") from None
            except OSError as error:
                raise SmokeFailed(f"the trial run could not be started: {error.strerror}") from error
        if done.returncode < 0:
            raise SmokeFailed(f"the trial run died of {signal.Signals(-done.returncode).name}")
        result = folder / "result.json"
        if not result.is_file():
            last = (folder / "err").read_text(errors="replace").strip().splitlines()[-1:] or ["no message"]
            raise SmokeFailed(f"the trial run failed with exit code {done.returncode}: {last[0][:500]}")
        answer = json.loads(result.read_text())
        if "error" in answer:
            raise SmokeFailed(f"the trial run failed: {answer['error']}")
        tensors = load_file(folder / "outputs.safetensors")
        outputs = tuple(tuple(tensors[f"{i}.{j}"] for j in range(n)) for i, n in enumerate(answer["outputs"]))
    return SmokeResult(answer["digest"], outputs, time.monotonic() - started)


def _write_job(folder: Path, package: Path, manifest: Manifest, calls: Sequence[Call], weights: Weights) -> None:
    stored = _Numbered()
    job: dict[str, Any] = {
        "package": str(package.absolute()),
        "calls": [{"entry_point": c.entry_point, "inputs": [stored.number(t) for t in c.inputs]} for c in calls],
    }
    if isinstance(weights, WeightsFrom):
        job["function"], job["arguments"] = weights.function, dict(weights.arguments)
    else:
        bound = {entry: set(names) for entry, names in manifest.bound.items()}
        job["weights"] = {
            entry: {name: stored.number(t) for name, t in named.items() if name in bound.get(entry, ())}
            for entry, named in weights.items()
        }
    save_file(stored.tensors(), folder / "tensors.safetensors")
    (folder / "manifest.json").write_bytes(manifest.to_json())
    (folder / "job.json").write_text(json.dumps(job))


class _Numbered:
    """Tensors by number; the same object (or the same memory in the same shape) gets the same number."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], str] = {}
        self._tensors: dict[str, Tensor] = {}

    def number(self, tensor: Tensor) -> str:
        where = (str(tensor.device), tensor.data_ptr(), tensor.dtype, tuple(tensor.shape))
        number = self._numbers.setdefault(where, str(len(self._numbers)))
        self._tensors[number] = tensor
        return number

    def tensors(self) -> dict[str, Tensor]:
        # A copy each: safetensors refuses tensors that share memory.
        return {number: t.detach().to("cpu", copy=True).contiguous() for number, t in self._tensors.items()}


def digest_of(tensors: Iterable[Tensor]) -> str:
    """sha256 over dtype, shape and bytes of the tensors in order: 64 hex."""
    digest = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{dtype_name(plain.dtype)}{list(plain.shape)}:".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _child(folder: Path) -> dict[str, Any]:
    job = json.loads((folder / "job.json").read_text())
    manifest = parse((folder / "manifest.json").read_bytes())
    device = torch.device(manifest.fields["environment"]["device"])
    stored = {name: tensor.to(device) for name, tensor in load_file(folder / "tensors.safetensors").items()}
    if "function" in job:
        module, _, name = job["function"].partition(":")
        constants = getattr(importlib.import_module(module), name)(**job["arguments"])
    else:
        constants = {entry: {n: stored[i] for n, i in named.items()} for entry, named in job["weights"].items()}
    binary = open_binary(Path(job["package"]), constants, manifest)
    seen, outputs, counts = [], {}, []
    for index, call in enumerate(job["calls"]):
        inputs = [stored[number] for number in call["inputs"]]
        results = binary.run(call["entry_point"], inputs)
        # Copies: a later call may go on changing the same tensors.
        seen.append(digest_of([*results, *inputs]))
        counts.append(len(results))
        outputs.update({f"{index}.{j}": t.detach().to("cpu", copy=True).contiguous() for j, t in enumerate(results)})
    save_file(outputs, folder / "outputs.safetensors")
    return {"digest": hashlib.sha256("".join(seen).encode()).hexdigest(), "outputs": counts}


def main(folder: Path) -> int:
    """Runs the job in `folder` and writes result.json there. 0, or 1 with the error in it."""
    try:
        result, code = _child(folder), 0
    except (CompileCacheError, OSError, ImportError, AttributeError, ValueError, TypeError, KeyError) as error:
        result, code = {"error": f"{type(error).__name__}: {error}"[:2000]}, 1
    (folder / "result.json").write_text(json.dumps(result))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
