"""What runs the graph's entry points: the interface, and the modules themselves (eager or torch.compile).

The compiled binary, which offers the same interface, is in binary.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .config import ModelConfig
from .control import GRAPH, PYTHON, Control
from .generator import Condition, Generate
from .weights import load_text_encoder, load_transformer, load_vae, read_tensors


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

    def __init__(self, mode: str, modules: Mapping[str, nn.Module], dtype: torch.dtype, origin: Origin) -> None:
        self.mode = mode
        self.origin = origin
        self.dtype = dtype
        self.device = torch.device("cpu")
        self._modules = modules

    @torch.no_grad()
    def run(self, entry_point: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(self._modules[entry_point](*tensors))

    def weights(self) -> list[Tensor]:
        return [tensor for module in self._modules.values() for tensor in (*module.parameters(), *module.buffers())]


def build_modules(folder: Path, config: ModelConfig, dtype: torch.dtype, control: Control) -> dict[str, nn.Module]:
    """Entry point -> module, sharing one transformer. Raises WeightsError naming what does not fit."""
    transformer = load_transformer(config, read_tensors(folder, "transformer", dtype))
    vae = load_vae(config, read_tensors(folder, "vae", dtype))
    text_encoder = load_text_encoder(config, read_tensors(folder, "text_encoder", dtype))
    condition, generate = Condition(text_encoder, transformer), Generate(transformer, vae, config, control)
    return {"condition": condition.eval(), "generate": generate.eval()}


def eager_runner(folder: Path, config: ModelConfig, dtype: torch.dtype, reason: str) -> ModuleRunner:
    return ModuleRunner("eager", build_modules(folder, config, dtype, PYTHON), dtype, Origin(reason=reason))


def jit_runner(folder: Path, config: ModelConfig, dtype: torch.dtype) -> ModuleRunner:
    """torch.compile of the same graph, compiled at the first run of each entry point."""
    modules = build_modules(folder, config, dtype, GRAPH)
    compiled = {name: torch.compile(module, fullgraph=True) for name, module in modules.items()}
    return ModuleRunner("jit", compiled, dtype, Origin(reason="torch.compile was asked for"))
