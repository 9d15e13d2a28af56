"""Are these tensors what the binary was compiled for? Asked before native code sees them.

A wrong constant or input is not an error for the native code: it reads past the end, crashes the
process or returns garbage. Pure functions over specs and tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from compile_cache.errors import ConstantMismatch, InputMismatch
from compile_cache.specs import EntrySpec, TensorSpec, dtype_name, dtype_of


def check_constants(
    spec: EntrySpec, bound: Sequence[str], given: Mapping[str, Tensor], device: torch.device
) -> dict[str, Tensor]:
    """The weights to bind, name -> tensor (detached, sharing memory). Raises ConstantMismatch naming a wrong one.

    bound: what the binary uses. `given` may also hold the entry point's other weights, but nothing else.
    """
    expected = {constant.name: constant for constant in spec.constants}
    for name in bound:
        if name not in given:
            raise ConstantMismatch(f"{spec.name}: the weight {name} is missing")
    for name, tensor in given.items():
        if name not in expected:
            raise ConstantMismatch(f"{spec.name}: the weight {name} is not one that the binary knows")
        if not isinstance(tensor, Tensor) or type(tensor.data) is not Tensor:
            raise ConstantMismatch(f"{spec.name}: the weight {name} is a {type(tensor).__name__}, not a plain tensor")
        problem = _problem(expected[name], tensor, device)
        if problem:
            raise ConstantMismatch(f"{spec.name}: the weight {name} {problem}")
    return {name: given[name].detach() for name in bound}


def _problem(spec: TensorSpec, tensor: Tensor, device: torch.device) -> str | None:
    if tuple(tensor.shape) != spec.shape:
        return f"has shape {list(tensor.shape)}, expected {spec.shape_text()}"
    if dtype_name(tensor.dtype) != spec.dtype:
        return f"has dtype {dtype_name(tensor.dtype)}, expected {spec.dtype}"
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        return "is not contiguous in memory"
    if tensor.is_neg() or tensor.is_conj():  # its memory holds other numbers than it stands for
        return "is a lazily negated or conjugated view"
    wanted = device if spec.device == device.type else torch.device(spec.device)
    if not _same_device(tensor.device, wanted):
        return f"is on {tensor.device}, expected {wanted}"
    return None


def _same_device(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and (one.index or 0) == (other.index or 0)


class InputCheck:
    """The checks of one entry point's inputs, prepared once so that a call costs microseconds.

    check(tensors) raises InputMismatch naming the first wrong input.
    """

    def __init__(self, spec: EntrySpec, device: torch.device) -> None:
        self._spec = spec
        self._device = device
        self._dtypes = [dtype_of(item.dtype) for item in spec.inputs]
        self._fixed = [all(isinstance(dim, int) for dim in item.shape) for item in spec.inputs]

    def check(self, tensors: Sequence[Tensor]) -> None:
        spec = self._spec
        if len(tensors) != len(spec.inputs):
            raise InputMismatch(f"{spec.name} takes {len(spec.inputs)} inputs, got {len(tensors)}")
        roots: dict[str, tuple[int, str]] = {}
        for item, dtype, fixed, tensor in zip(spec.inputs, self._dtypes, self._fixed, tensors, strict=True):
            if not isinstance(tensor, Tensor):
                self._fail(item, f"is a {type(tensor).__name__}, not a tensor")
            shape = tuple(tensor.shape)
            if len(shape) != len(item.shape):
                self._fail(item, f"has {len(shape)} dimensions, expected {item.shape_text()}")
            if fixed:
                if shape != item.shape:
                    self._fail(item, f"has shape {list(shape)}, expected {item.shape_text()}")
            else:
                self._check_dims(item, shape, roots)
            if tensor.dtype != dtype:
                self._fail(item, f"has dtype {dtype_name(tensor.dtype)}, expected {item.dtype}")
            if not tensor.is_contiguous():
                self._fail(item, "is not contiguous in memory")
            wanted = self._device if item.device == self._device.type else torch.device(item.device)
            if not _same_device(tensor.device, wanted):
                self._fail(item, f"is on {tensor.device}, expected {wanted}")
            if tensor.numel() == 0:
                self._fail(item, "is empty")

    def _check_dims(self, item: TensorSpec, shape: tuple[int, ...], roots: dict[str, tuple[int, str]]) -> None:
        for size, dim in zip(shape, item.shape, strict=True):
            if isinstance(dim, int):
                if size != dim:
                    self._fail(item, f"has shape {list(shape)}, expected {item.shape_text()}")
                continue
            value, rest = divmod(size - dim.offset, dim.factor)
            if rest or not dim.least <= size <= dim.most:
                self._fail(item, f"has shape {list(shape)}, expected {item.shape_text()}")
            known = roots.setdefault(dim.root, (value, item.name))
            if known[0] != value:
                self._fail(item, f"has {dim.root} = {value}, but {known[1]} has {dim.root} = {known[0]}")

    def _fail(self, item: TensorSpec, problem: str) -> None:
        raise InputMismatch(f"{self._spec.name}: the input {item.name} {problem}")
