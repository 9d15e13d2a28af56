"""How far a binary is from the modules it was built from, run eagerly on the same calls with the same weights.

Answers whether the compiler was right; the digest of `proof` answers whether two binaries compute the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from compile_cache import synthetic
from compile_cache.entry import EntryPoint
from compile_cache.errors import SmokeFailed
from compile_cache.manifest import Manifest
from compile_cache.proof import Call, Proof
from compile_cache.specs import EntrySpec, constants_of

# Wide enough for bfloat16, where the embedded model's binary is 1.3e-2 away; float32 can do with 1e-3 and less.
TOLERANCE = 0.05


def compare(
    entry_points: Sequence[EntryPoint],
    manifest: Manifest,
    calls: Sequence[Call],
    proof: Proof,
    tolerance: float = TOLERANCE,
) -> float:
    """The greatest `distance` of any output, and of any input after its call, between eager and the proof.

    The modules are left as they are. Raises SmokeFailed naming the first tensor further off than `tolerance`, of
    another shape or dtype, or whose eager value is not finite, so that it says nothing.
    """
    points = {entry.name: entry for entry in entry_points}
    specs = manifest.entry_points
    weights = {name: _weights(entry, specs[name], manifest.bound[name]) for name, entry in points.items()}
    copies: dict[int, Tensor] = {}  # the caller's tensors stay as they are; one shared by several calls stays shared
    worst = 0.0
    for index, call in enumerate(calls):
        place = specs[call.entry_point].inputs
        inputs = [
            copies.setdefault(id(tensor), tensor.to(spec.device, copy=True))
            for tensor, spec in zip(call.inputs, place, strict=True)
        ]
        outputs = _run(points[call.entry_point], weights[call.entry_point], inputs, index)
        pairs = (("output", outputs, proof.outputs[index]), ("input", inputs, proof.inputs[index]))
        for kind, ours, theirs in pairs:
            if len(ours) != len(theirs):
                raise SmokeFailed(f"call {index} has {len(theirs)} {kind}s, eager has {len(ours)}")
            for position, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                where = f"call {index} ({call.entry_point}), {kind} {position}"
                worst = max(worst, _checked(where, one.cpu(), other, tolerance))
    return worst


def distance(one: Tensor, other: Tensor) -> float:
    """Relative L2 distance of `other` from `one`: 0 for equal, inf where only `one` is all zeros."""
    one, other = one.double(), other.double()
    difference, size = (one - other).norm().item(), one.norm().item()
    if difference == 0:
        return 0.0
    return difference / size if size else float("inf")


def _checked(where: str, one: Tensor, other: Tensor, tolerance: float) -> float:
    if one.shape != other.shape or one.dtype != other.dtype:
        raise SmokeFailed(f"{where} has another shape or dtype than eager's")
    if not one.isfinite().all():
        raise SmokeFailed(f"{where} is not finite when run eagerly, so nothing can be compared")
    apart = distance(one, other)
    if not apart <= tolerance:  # NaN is no agreement
        raise SmokeFailed(f"{where} differs from eager's by {apart:.2g} of its size, more than {tolerance:g}")
    return apart


def _run(entry: EntryPoint, weights: dict[str, Tensor], inputs: Sequence[Tensor], index: int) -> Sequence[Tensor]:
    module = entry.module if entry.twin is None else entry.twin
    try:
        with torch.no_grad():
            # Ties are resolved in _weights: each name has its value.
            result = functional_call(module, weights, tuple(inputs), tie_weights=False)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"[:500]
        raise SmokeFailed(f"call {index}: {entry.name} cannot be run eagerly: {text}") from error
    return (result,) if isinstance(result, Tensor) else tuple(result)


def _weights(entry: EntryPoint, spec: EntrySpec, bound: Collection[str]) -> dict[str, Tensor]:
    """Synthetic weights for every name. Of names for one parameter the binary may bind one: its value is theirs."""
    weights = synthetic.weights(spec)
    for names in _tied(entry.module if entry.twin is None else entry.twin):
        leading = [name for name in names if name in bound]
        for name in names:
            if leading and name not in leading:
                weights[name] = weights[leading[0]]
    return weights


def _tied(module: nn.Module) -> Collection[list[str]]:
    """The groups of names that stand for one parameter or buffer."""
    groups: dict[int, list[str]] = defaultdict(list)
    for name, tensor in constants_of(module).items():
        groups[id(tensor)].append(name)
    return [names for names in groups.values() if len(names) > 1]
