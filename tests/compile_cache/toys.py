"""A small generator with everything that ours has: a while_loop, a cond, mutated inputs, tied names."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.export import Dim

from compile_cache.entry import EntryPoint
from compile_cache.specs import dynamic

WIDTH = 8
RING = 4


class Body(nn.Module):
    """The shared weights. `gain` starts as all ones and `lin.bias` as zeros: a compiler that looked at
    the values would drop both."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)
        nn.init.zeros_(self.lin.bias)
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.unused = nn.Parameter(torch.zeros(2))
        self.register_buffer("shift", torch.linspace(-1, 1, WIDTH), persistent=False)


class Rollout(nn.Module):
    """forward(x [rows, 8], ring [4, 8] mutated, steps [] int64) -> (x, number of steps run).

    eager: with plain Python in place of torch's operators, which compile themselves when they are called.
    """

    def __init__(self, body: Body, eager: bool = False) -> None:
        super().__init__()
        self.body = body
        self.loop, self.branch = (python_loop, python_branch) if eager else (torch.while_loop, torch.cond)

    def forward(self, x: Tensor, ring: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        literal = torch.tensor([0.25, -0.5])

        def go_on(i: Tensor, x: Tensor) -> Tensor:
            return i < steps

        def step(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            y = torch.tanh(self.body.lin(x)) * self.body.gain + self.body.shift
            ring.index_copy_(0, (i % RING)[None], y.mean(0)[None])
            y = self.branch(y.sum() > 0, lambda v: v * 0.5, lambda v: v + 1.0, (y,))
            return i + 1, y

        i, x = self.loop(go_on, step, (torch.zeros((), dtype=torch.int64), x))
        return x + literal.sum(), i


def python_loop(go_on, body, carry):
    while bool(go_on(*carry)):
        carry = body(*carry)
    return carry


def python_branch(flag, then, otherwise, operands):
    return then(*operands) if bool(flag) else otherwise(*operands)


class Encode(nn.Module):
    """forward(tokens [count] int64) -> one tensor [count, 8]."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body.lin.weight.index_select(0, tokens) * self.body.gain


def toy_entry_points(seed: int = 0) -> list[EntryPoint]:
    """Two entry points over one body; `rows` and `count` are dynamic, from 1."""
    torch.manual_seed(seed)
    body = Body()
    rows, count = dynamic("rows", 1, 64), Dim("count", min=1, max=8)
    example = (torch.randn(3, WIDTH), torch.zeros(RING, WIDTH), torch.tensor(3))
    return [
        EntryPoint("rollout", Rollout(body), example, ({0: rows}, None, None), twin=Rollout(body, eager=True)),
        EntryPoint("encode", Encode(body), (torch.arange(3),), ({0: count},)),
    ]


def change_weights(entry_points: list[EntryPoint], seed: int = 1) -> None:
    """Gives every weight a new value in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*entry_points[0].module.parameters(), *entry_points[0].module.buffers()):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) - 0.4)
