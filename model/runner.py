"""What runs the graph's entry points: the interface, the modules themselves (eager or torch.compile), and a name tag
for what runs in another process.

The compiled binary, which offers the same interface, is in binary.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .parts import Parts


@dataclass(frozen=True)
class Origin:
    """Where what runs came from."""

    source: str | None = None  # of the binary
    key: str | None = None
    size: int | None = None  # bytes
    seconds: float | None = None  # to find, verify and load it
    reason: str | None = None  # why there is no binary, or what was passed over before this one
    build: Mapping[str, Any] = field(default_factory=dict)  # of the binary: when, by whom, sha256, the key's fields


class Runner(Protocol):
    mode: str  # "aot", "jit" or "eager"
    origin: Origin
    dtype: torch.dtype  # of weights and state
    device: torch.device

    def run(self, entry_point: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Run "condition" or "generate" on its inputs in order; state tensors are changed in place."""
        ...

    def weights(self) -> list[Tensor]:
        """All weights and tables, by reference; some may be listed twice."""
        ...


class ModuleRunner:
    """The entry points as PyTorch modules."""

    def __init__(self, mode: str, parts: Parts, modules: Mapping[str, nn.Module], origin: Origin) -> None:
        self.mode = mode
        self.origin = origin
        self.dtype = parts.dtype
        self.device = parts.device
        self._modules = modules

    @torch.no_grad()
    def run(self, entry_point: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(self._modules[entry_point](*tensors))

    def weights(self) -> list[Tensor]:
        return [tensor for module in self._modules.values() for tensor in (*module.parameters(), *module.buffers())]


@dataclass(frozen=True)
class Held:
    """What the process that serves holds, as it is told to the one that runs a request."""

    key: str | None  # of the binary
    number: int  # of the times that it took hold of something: the same key may come again, with another binary
    untried: bool = False  # whether the binary's trial run is still to be made, where the request runs


class Named:
    """What a fork of this process will open, by name: where only forks have the device, nothing runs in this one."""

    def __init__(self, mode: str, parts: Parts, origin: Origin, *, tried: bool = True) -> None:
        """tried: whether a binary has had its trial run on this machine."""
        self.mode = mode
        self.origin = origin
        self.dtype = parts.dtype
        self.device = parts.device
        self.tried = tried
        self.weights = parts.weights

    def run(self, entry_point: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        raise RuntimeError(f"{entry_point} cannot be run in the process that only names what runs elsewhere")


def eager_runner(parts: Parts, reason: str) -> ModuleRunner:
    return ModuleRunner("eager", parts, parts.modules(), Origin(reason=reason))


def jit_runner(parts: Parts) -> ModuleRunner:
    """torch.compile of the same graph, compiled at the first run of each entry point."""
    compiled = {name: torch.compile(module, fullgraph=True) for name, module in parts.graph().items()}
    return ModuleRunner("jit", parts, compiled, Origin(reason="torch.compile was asked for"))
