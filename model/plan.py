"""What a model needs in memory, part by part, without having it: weights, state, and the temporaries of a call.

Sizes of weights and state are exact. Temporaries are counted on fake tensors through one pass of the graph's own code
(one forward, one decode), operator by operator, as eager PyTorch would hold them; a compiled graph fuses operators and
needs less, workspaces inside of kernels come on top. Knows no device's allocator.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .config import ModelConfig
from .control import Control, Tensors
from .hollow import hollow


@dataclass(frozen=True)
class Plan:
    """Bytes, for one video at one size."""

    weights: Mapping[str, int]  # by part
    tables: int
    kv: int
    prompt: int  # the cross-attention's keys and values
    caches: int  # the decoder's
    frames: int  # of one call
    work: Mapping[str, int]  # temporaries, at most at a time, of each phase

    @property
    def held(self) -> int:
        """What stays from call to call."""
        return sum(self.weights.values()) + self.tables + self.kv + self.prompt + self.caches + self.frames

    @property
    def peak(self) -> int:
        return self.held + max(self.work.values())

    def rows(self) -> list[tuple[str, int]]:
        """Name and bytes, in the order in which people read them."""
        return [
            *((f"weights: {part.replace('_', ' ')}", size) for part, size in self.weights.items()),
            ("tables", self.tables),
            ("KV cache", self.kv),
            ("prompt's keys and values", self.prompt),
            ("decoder caches", self.caches),
            ("frames of a call", self.frames),
            ("held", self.held),
            *((f"temporaries: {phase}", size) for phase, size in self.work.items()),
            ("peak", self.peak),
        ]

    def as_dict(self) -> dict[str, Any]:
        return dict(self.rows())


def plan(config: ModelConfig, height: int, width: int, room: int = 1, dtype: torch.dtype = torch.bfloat16) -> Plan:
    """The plan for videos of height × width pixels, `room` blocks in one call. Takes seconds, and no memory.

    Raises ConfigError where the text encoder's configuration is none of UMT5.
    """
    work = Work()
    model = hollow(config, height, width, room=room, dtype=dtype, control=work.control)
    with model.mode:
        work.count(model.modules, model.inputs)
    weights = {part: size_of(module.parameters()) for part, module in model.parts.items()}
    everything = [t for module in model.modules.values() for t in (*module.parameters(), *module.buffers())]
    named = model.inputs["generate"]

    def named_so(*beginnings: str) -> int:
        return size_of(tensor for name, tensor in named.items() if name.startswith(beginnings))

    return Plan(
        weights=weights,
        tables=size_of(everything) - sum(weights.values()),
        kv=named_so("k_", "v_"),
        prompt=named_so("cross_"),
        caches=named_so("cache_"),
        frames=named_so("frames"),
        work=work.phases,
    )


class Work:
    """Bytes of temporaries, at most at a time, of each phase: "condition", "forward", "decode"."""

    def __init__(self) -> None:
        self.phases: dict[str, int] = {}
        self._live = Live()
        # Nothing is decided: one forward with a full cache, and what comes out of it is decoded.
        self.control = Control(loop=self._once, branch=self._decode, size=lambda count, most: most)

    @torch.no_grad()
    def count(self, modules: Mapping[str, nn.Module], inputs: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Runs both entry points, made with this object's `control`, once."""
        with self._live:
            modules["condition"](*inputs["condition"].values())
            self.phases["condition"] = self._live.restart()
            modules["generate"](*inputs["generate"].values())
            self.phases["decode"] = self._live.restart()

    def _once(self, go_on: Callable[..., Tensor], body: Callable[..., Tensors], carry: Tensors) -> Tensors:
        return body(*carry)

    def _decode(
        self, flag: Tensor, then: Callable[..., Tensors], _: Callable[..., Tensors], operands: Sequence[Tensor]
    ) -> Tensors:
        self.phases["forward"] = self._live.restart()
        return then(*operands)


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes; tensors that share memory count once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


class Live(TorchDispatchMode):
    """Counts the bytes of the tensors that operators make, while any of them is referenced: `now`, and `peak`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def restart(self) -> int:
        """The peak so far; another one is counted from now on."""
        peak, self.peak = self.peak, self.now
        return peak

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for tensor in _tensors((args, kwargs)):
            self._note(tensor, counted=False)
        made = func(*args, **(kwargs or {}))
        for tensor in _tensors(made):
            self._note(tensor, counted=True)
        return made

    def _note(self, tensor: Tensor, counted: bool) -> None:
        storage = tensor.untyped_storage()
        name, size = storage._cdata, storage.nbytes() if counted else 0
        if name in self._known:
            return
        self._known.add(name)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, name, size)

    def _gone(self, name: int, size: int) -> None:
        self._known.discard(name)
        self.now -= size


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
