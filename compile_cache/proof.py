"""What a package computes, proven in a child process, so that one that crashes takes nothing with it.

Everybody who holds a package, its manifest and the reference calls gets the same digest: the weights are synthetic
(`synthetic.weights`), since the real ones are not in the key and two models of one architecture share a binary. Whose
digest is the manifest's has a binary that computes what the publisher's computed, bit for bit, here.

What the digest depends on beside the package, and why it is the same where the key is:

* the calls: the caller's to derive from the key's fields alone;
* the number of threads, which decides the order of sums: one, here;
* the kernels of torch, oneDNN and MKL that the package calls. They are chosen by the processor at hand. For a native
  package its instruction set is in the key; one for a named level runs on better processors too, so the choice is
  held down to that level here;
* variables that choose other kernels: not passed on.

What is left (another vendor's processor with the very same extensions, another BLAS in a build of torch that bears
the same version and commit) can only refuse a sound package, never accept a wrong one. Parent: this file. Child:
`trial`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from compile_cache import scratch
from compile_cache.errors import SmokeFailed, TrialUnfinished
from compile_cache.manifest import Manifest

# Beginnings of variables that make torch's libraries choose other kernels, another precision or more threads.
STEERING = ("ATEN_", "BLIS_", "DNNL_", "GOMP_", "KMP_", "MKL_", "NVIDIA_TF32_", "OMP_", "ONEDNN_", "OPENBLAS_",
            "TORCH_ALLOW_TF32_")  # fmt: skip
# Variables that are no business of code which has not proven itself.
SECRET = re.compile(r".*(TOKEN|SECRET|PASSWORD|CREDENTIAL|API_?KEY|ACCESS_KEY).*", re.IGNORECASE)
# Signals that a package does not send itself: the memory ran out, or somebody ended the program.
FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
# Named level of a package -> the same level in the words of torch, oneDNN and MKL.
LEVELS = {
    "x86-64": ("default", "SSE41", "SSE4_2"),
    "x86-64-v2": ("default", "SSE41", "SSE4_2"),
    "x86-64-v3": ("avx2", "AVX2", "AVX2"),
    "x86-64-v4": ("avx512", "AVX512_CORE", "AVX512"),
}


@dataclass(frozen=True)
class Call:
    """One reference call. A tensor object used in several calls is one tensor there too: state is carried on."""

    entry_point: str
    inputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class Proof:
    """What the calls gave, in order, on the CPU: `outputs` of each, and its `inputs` after it (some are changed).

    digest: 64 hex digits over all of them.
    """

    digest: str
    outputs: tuple[tuple[Tensor, ...], ...]
    inputs: tuple[tuple[Tensor, ...], ...]


def prove(package: Path, manifest: Manifest, calls: Sequence[Call], *, timeout: float = 900.0) -> Proof:
    """Runs `calls` on the package with synthetic weights, in a child process. `timeout` in seconds.

    Raises SmokeFailed when the child dies, takes too long or reports an error; TrialUnfinished, which is one, where
    that may lie with the machine.
    """
    with scratch.folder() as folder:
        answer = _run(folder, package, manifest, calls, True, timeout)
        tensors = load_file(folder / "results.safetensors")
    parts = {
        kind: tuple(tuple(tensors[f"{kind}.{i}.{j}"] for j in range(n)) for i, n in enumerate(answer[kind]))
        for kind in ("outputs", "inputs")
    }
    return Proof(answer["digest"], **parts)


def check(package: Path, manifest: Manifest, calls: Sequence[Call], *, timeout: float = 900.0) -> None:
    """Raises SmokeFailed unless the package gives, here, the result that its manifest states; `timeout` in seconds.

    TrialUnfinished, which is a SmokeFailed, where that may lie with the machine.

    The package's content must have been checked against the manifest before.
    """
    if manifest.reference is None:
        raise SmokeFailed("its manifest states no reference result to compare with")
    with scratch.folder() as folder:
        digest = _run(folder, package, manifest, calls, False, timeout)["digest"]
    if digest != manifest.reference:
        raise SmokeFailed("the trial run gives another result here than its publisher's")


def _run(
    folder: Path, package: Path, manifest: Manifest, calls: Sequence[Call], keep: bool, timeout: float
) -> dict[str, Any]:
    """The child's answer: digest, and how many outputs and inputs each call has."""
    if not calls:
        raise SmokeFailed("there are no reference calls to try it with")
    _write_job(folder, package, manifest, calls, keep)
    command = [sys.executable, "-m", "compile_cache.trial", str(folder)]
    # Output into files: a crash may print much, and a pipe nobody reads would stall the child.
    with (folder / "out").open("w+b") as out, (folder / "err").open("w+b") as err:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        try:
            done = subprocess.run(command, env=child_variables(manifest), timeout=timeout, **streams)
        except subprocess.TimeoutExpired:
            raise TrialUnfinished(f"the trial run took longer than {timeout:.0f} s") from None
        except OSError as error:
            raise TrialUnfinished(f"the trial run could not be started: {error.strerror}") from error
    if done.returncode < 0:
        killed = -done.returncode in FROM_OUTSIDE
        kind = TrialUnfinished if killed else SmokeFailed
        raise kind(f"the trial run died of {signal.Signals(-done.returncode).name}")
    result = folder / "result.json"
    if not result.is_file():
        last = (folder / "err").read_text(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise SmokeFailed(f"the trial run failed with exit code {done.returncode}: {last[0][:500]}")
    answer = json.loads(result.read_text())
    if not answer.get("device", True) and torch.cuda.is_available():
        # Lent to this process alone, which is made for such tasks and may die of them.
        from compile_cache import trial

        trial.main(folder)
        answer = json.loads(result.read_text())
    if "error" in answer:
        kind = TrialUnfinished if answer["machine"] else SmokeFailed
        raise kind(f"the trial run failed: {answer['error']}")
    return answer


def child_variables(manifest: Manifest) -> dict[str, str]:
    """The environment variables of the child: ours, without those that choose kernels, and without secrets."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(STEERING) and not SECRET.fullmatch(name)
    }
    passed |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    place: Mapping[str, Any] = manifest.fields["environment"]
    level = LEVELS.get(place["cpu"]["target"])
    if level is not None:
        names = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
        passed |= dict(zip(names, level, strict=True))
    return passed


def _write_job(folder: Path, package: Path, manifest: Manifest, calls: Sequence[Call], keep: bool) -> None:
    stored = _Numbered()
    job = {
        "package": str(package.absolute()),
        "calls": [{"entry_point": c.entry_point, "inputs": [stored.number(t) for t in c.inputs]} for c in calls],
        "keep": keep,
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
