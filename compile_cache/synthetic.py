"""Stand-ins for weights: numbers that everybody can make from names, shapes and dtypes alone.

A binary is proven with them, so that its proof needs no weights: two models of one architecture share a binary, and
whoever downloads one may hold other weights than its publisher. Knows no packages and no modules.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor

from compile_cache.specs import EntrySpec, TensorSpec, dtype_of

STEPS = 2**16  # a number is one of that many equally likely ones
FEW = 4
WHOLE = 127  # values of an int8: not all of them, since processors without VNNI overflow on larger ones


def weights(spec: EntrySpec, names: Collection[str] | None = None) -> dict[str, Tensor]:
    """The constants of an entry point (those in `names`, or all), name -> tensor, on the device that its spec says.

    The same for the same entry point's name, constant's name, shape and dtype, on every machine and for ever: what a
    key's reference digest stands for. A change of these numbers is a new `key.SCHEMA`.
    """
    wanted = (item for item in spec.constants if names is None or item.name in names)
    return {item.name: _weight(spec.name, item).to(item.device) for item in wanted}


def noise(label: str, shape: tuple[int, ...], dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Numbers of variance scale² around 0 on the CPU, a function of the arguments; for int8, which holds
    quantised weights, the same as whole numbers from -63 to 63; for other dtypes without fractions, zeros.

    Raw output of a counter-based generator, turned into numbers by exact arithmetic: numpy promises the bits of its
    generators for ever but not its normal numbers, and a logarithm may differ in its last bit between machines.
    """
    if not dtype.is_floating_point and dtype != torch.int8:
        return torch.zeros(shape, dtype=dtype)  # indices, flags: 0 is in the range of most
    count = math.prod(shape)
    seed = int.from_bytes(hashlib.sha256(label.encode()).digest()[:16], "little")
    words = np.random.Philox(key=seed).random_raw(-(-count // 4))
    steps = words.astype("<u8").view("<u2")[:count].astype(np.float32)
    steps -= STEPS / 2 - 0.5
    if dtype == torch.int8:
        return torch.from_numpy(np.rint(steps * np.float32(WHOLE / STEPS)).astype(np.int8)).reshape(shape)
    steps *= scale * math.sqrt(12) / STEPS
    return torch.from_numpy(steps).reshape(shape).to(dtype)


def _weight(entry_point: str, spec: TensorSpec) -> Tensor:
    shape = tuple(size for size in spec.shape if isinstance(size, int))  # a constant's are all fixed
    return noise(f"{entry_point}/{spec.name}", shape, dtype_of(spec.dtype), _scale(shape))


def _scale(shape: tuple[int, ...]) -> float:
    """Keeps activations near 1 through layers, so that every weight can be seen in the results and none overflows.

    Of a tensor it shows only the shape whether it multiplies, convolves or is looked up. One axis: gains, biases and
    tables, as they are. Two, four or five: [out, in, ...], by the number of values that are summed. Three: a few
    tables, as they are, or else [out, in, width] or [experts, in, out], by `in`.
    """
    axes = [size for size in shape if size > 1]
    if len(axes) < 2 or (len(axes) == 3 and axes[0] <= FEW):
        return 1.0
    summed = axes[1] if len(axes) == 3 else math.prod(axes[1:])
    return 1 / math.sqrt(summed)  # a square root is exact to the last bit everywhere, a power is not
