"""The child process of a proof: python -m compile_cache.trial FOLDER.

FOLDER holds job.json (the package's path, the calls, whether to keep the results), manifest.json and
tensors.safetensors (the calls' inputs by number). Written there: result.json, with the digest or the error, and
results.safetensors where they are to be kept. What a crash leaves is no result.json.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from compile_cache import synthetic
from compile_cache.binary import open_binary
from compile_cache.errors import CompileCacheError, DeviceMissing, StoreError, out_of_memory
from compile_cache.manifest import parse
from compile_cache.specs import dtype_name

PR_SET_PDEATHSIG = 1  # of prctl


def digest_of(tensors: Iterable[Tensor]) -> str:
    """sha256 over dtype, shape and bytes of the tensors in order: 64 hex."""
    digest = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{dtype_name(plain.dtype)}{list(plain.shape)}:".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def run(folder: Path) -> dict[str, Any]:
    """Runs the job; what goes into result.json. Raises DeviceMissing, CompileCacheError and what a bad job raises."""
    job = json.loads((folder / "job.json").read_text())
    manifest = parse((folder / "manifest.json").read_bytes())
    device = torch.device(manifest.fields["environment"]["device"])
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DeviceMissing("the process of the trial run has no GPU")
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    stored = {name: tensor.to(device) for name, tensor in load_file(folder / "tensors.safetensors").items()}
    weights = {name: synthetic.weights(spec, manifest.bound[name]) for name, spec in manifest.entry_points.items()}
    binary = open_binary(Path(job["package"]), weights, manifest)
    digests, kept = [], {}
    counts: Mapping[str, list[int]] = {"outputs": [], "inputs": []}
    for index, call in enumerate(job["calls"]):
        inputs = [stored[number] for number in call["inputs"]]
        outputs = binary.run(call["entry_point"], inputs)
        digests.append(digest_of([*outputs, *inputs]))
        for kind, tensors in (("outputs", outputs), ("inputs", inputs)):
            counts[kind].append(len(tensors))
            if job["keep"]:  # copies: a later call may go on changing the same tensors
                kept.update({f"{kind}.{index}.{j}": _copy(tensor) for j, tensor in enumerate(tensors)})
    if job["keep"]:
        save_file(kept, folder / "results.safetensors")
    return {"digest": hashlib.sha256("".join(digests).encode()).hexdigest(), **counts}


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def main(folder: Path) -> int:
    """Runs the job in `folder` and writes result.json there. 0, or 1 with the error in it."""
    try:
        result, code = run(folder), 0
    except (CompileCacheError, OSError, AttributeError, ValueError, TypeError, LookupError, MemoryError,
            RuntimeError) as error:  # fmt: skip
        machine = isinstance(error, DeviceMissing | StoreError | OSError | MemoryError)  # no room, for example
        machine = machine or out_of_memory(str(error))
        result = {"error": f"{type(error).__name__}: {error}"[:2000], "machine": machine}
        result["device"], code = not isinstance(error, DeviceMissing), 1
    (folder / "result.json").write_text(json.dumps(result))
    return code


def die_with_parent() -> None:
    """A library that never comes back must not outlive whoever wanted to know."""
    with suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(Path(sys.argv[1])))
