"""An entry point as a builder gives it: a module with example inputs, and what may vary between calls.

As data, without modules, it is a `specs.EntrySpec`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from compile_cache.errors import BuildFailed
from compile_cache.specs import ENTRY_NAME, DimSpec, EntrySpec, describe, describe_constants


@dataclass(frozen=True)
class EntryPoint:
    """One graph of the package.

    module: forward(*args) takes and returns tensors only (a tuple, list or single tensor).
    args: example inputs in call order, contiguous, none of size 0.
    dynamic_shapes: per input a {dimension: specs.dynamic(...) or torch Dim} or None; None for all fixed.
    input_names: for messages, and part of the key; by default those of forward's parameters.
    twin: the same computation, with weights of the same names, in a form that can be run eagerly; by default `module`.
        Needed where `module` holds an operator that compiles itself when it is called, such as torch's while_loop.

    For a key alone, `spec`, module and args may be on the meta device; a build needs real ones. A twin may always be.
    """

    name: str
    module: nn.Module
    args: tuple[Tensor, ...]
    dynamic_shapes: tuple[Mapping[int, Any] | None, ...] | None = None
    input_names: tuple[str, ...] | None = None
    twin: nn.Module | None = None

    def spec(self, device: torch.device | str = "cpu") -> EntrySpec:
        """The entry point as data: what key, manifest and loader go by. Raises BuildFailed when it cannot be.

        device: what to note for meta tensors.
        """
        if not ENTRY_NAME.fullmatch(self.name):
            raise BuildFailed(f"entry point name {self.name!r}: lower-case letters, digits and _ only")
        dims = self.dynamic_shapes or (None,) * len(self.args)
        names = self.names
        if not len(self.args) == len(names) == len(dims):
            raise BuildFailed(f"{self.name}: args, input names and dynamic_shapes must be of one length")
        place = torch.device(device).type
        inputs = tuple(describe(*item, device=place) for item in zip(names, self.args, dims, strict=True))
        return EntrySpec(self.name, inputs, describe_constants(self.module, device=place))

    @property
    def names(self) -> tuple[str, ...]:
        """One name per input; those of a *args parameter are numbered."""
        if self.input_names is not None:
            return self.input_names
        found: list[str] = []
        for parameter in inspect.signature(self.module.forward).parameters.values():
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                found += [f"{parameter.name}_{n}" for n in range(len(self.args) - len(found))]
            elif parameter.default is inspect.Parameter.empty or len(found) < len(self.args):
                found.append(parameter.name)
        return tuple(found)


def export_shapes(entry: EntryPoint) -> Any:
    """dynamic_shapes as torch.export wants them: its own Dims, one object per root, *args as one parameter."""
    if entry.dynamic_shapes is None:
        return None
    roots: dict[str, Any] = {}

    def own(dim: Any) -> Any:
        if not isinstance(dim, DimSpec):
            return dim
        least, most = -((dim.offset - dim.least) // dim.factor), (dim.most - dim.offset) // dim.factor
        root = roots.setdefault(dim.root, torch.export.Dim(dim.root, min=least, max=most))
        scaled = root if dim.factor == 1 else dim.factor * root
        return scaled + dim.offset if dim.offset else scaled

    shapes = [None if dims is None else {axis: own(dim) for axis, dim in dims.items()} for dims in entry.dynamic_shapes]
    kinds = [p.kind for p in inspect.signature(entry.module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        plain = kinds.index(inspect.Parameter.VAR_POSITIONAL)
        return (*shapes[:plain], tuple(shapes[plain:]))
    return tuple(shapes)
