"""Control flow of the graph, in two forms: as graph operators, and as plain Python for eager runs and tests.

torch's own operators cannot serve both: called outside an export they compile themselves first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop

Tensors = tuple[Tensor, ...]


def size(count: Tensor, most: int) -> int:
    """A 0-d int64 as the size of a dimension, at least 1; in a graph one that is known when it runs."""
    known = count.item()
    torch._check(known >= 1)
    torch._check(known <= most)
    return known


class Control(NamedTuple):
    """`loop(go_on, body, carry)` repeats body(*carry) while go_on(*carry); `branch(flag, then, otherwise)`."""

    loop: Callable[[Callable[..., Tensor], Callable[..., Tensors], Tensors], Tensors]
    branch: Callable[[Tensor, Callable[..., Tensors], Callable[..., Tensors], Sequence[Tensor]], Tensors]
    size: Callable[[Tensor, int], int] = size


def _python_loop(go_on: Callable[..., Tensor], body: Callable[..., Tensors], carry: Tensors) -> Tensors:
    while bool(go_on(*carry)):
        carry = body(*carry)
    return carry


def _python_branch(
    flag: Tensor, then: Callable[..., Tensors], otherwise: Callable[..., Tensors], operands: Sequence[Tensor]
) -> Tensors:
    return then(*operands) if bool(flag) else otherwise(*operands)


GRAPH = Control(loop=while_loop, branch=torch.cond)
PYTHON = Control(loop=_python_loop, branch=_python_branch)
