"""What goes into an entry point: names, shapes, dtypes, dynamic dimensions. Plain data, no tensors.

These descriptions are part of the key, travel in the manifest and are what inputs and constants are
checked against. This file does not know how anything is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from compile_cache.errors import BuildFailed, ManifestError

LARGEST_DIM = 2**31
NAME = re.compile(r"[A-Za-z0-9_.]{1,200}")
ENTRY_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True)
class DimSpec:
    """A dynamic dimension: size = factor * root + offset, with `least` <= size <= `most`.

    Dimensions that share `root` must agree on its value in every call. `dynamic` makes the plain ones.
    """

    root: str
    factor: int
    offset: int
    least: int
    most: int

    def as_json(self) -> dict[str, Any]:
        return {
            "root": self.root,
            "factor": self.factor,
            "offset": self.offset,
            "least": self.least,
            "most": self.most,
        }

    def times(self, factor: int, plus: int = 0) -> DimSpec:
        """The dimension factor * self + plus."""
        least, most = self.least * factor + plus, self.most * factor + plus
        return DimSpec(self.root, self.factor * factor, self.offset * factor + plus, least, most)

    def __str__(self) -> str:
        factor = "" if self.factor == 1 else f"{self.factor}*"
        offset = f"{self.offset:+d}" if self.offset else ""
        return f"{factor}{self.root}{offset} in {self.least}..{self.most}"


def dynamic(name: str, least: int, most: int) -> DimSpec:
    """A dynamic dimension by name and range. Does what torch.export.Dim does, whose first use loads SymPy
    (0.3 s that a process which only looks a key up need not spend)."""
    return DimSpec(name, 1, 0, least, most)


@dataclass(frozen=True)
class TensorSpec:
    """One tensor: `shape` holds an int for a fixed dimension and a DimSpec for a dynamic one."""

    name: str
    shape: tuple[int | DimSpec, ...]
    dtype: str
    device: str

    def as_json(self) -> dict[str, Any]:
        shape = [dim if isinstance(dim, int) else dim.as_json() for dim in self.shape]
        return {"name": self.name, "shape": shape, "dtype": self.dtype, "device": self.device}

    def shape_text(self) -> str:
        return "[" + ", ".join(str(dim) for dim in self.shape) + "]"


@dataclass(frozen=True)
class EntrySpec:
    """An entry point seen from outside: its inputs in call order and every weight it may use."""

    name: str
    inputs: tuple[TensorSpec, ...]
    constants: tuple[TensorSpec, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "inputs": [spec.as_json() for spec in self.inputs],
            "constants": [spec.as_json() for spec in sorted(self.constants, key=lambda spec: spec.name)],
        }


def dtype_name(dtype: torch.dtype) -> str:
    """torch.float32 -> "float32"."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """ "float32" -> torch.float32. Raises ManifestError for anything else."""
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise ManifestError(f"unknown dtype {name!r}")
    return dtype


def describe(name: str, tensor: Tensor, dims: Mapping[int, Any] | None = None, device: str = "meta") -> TensorSpec:
    """The TensorSpec of an example tensor; `dims` as torch.export takes it for this tensor.

    device: the type to note when the tensor is on the meta device.
    """
    shape: list[int | DimSpec] = [int(size) for size in tensor.shape]
    for axis, dim in (dims or {}).items():
        if dim is None or isinstance(dim, int):
            continue
        if not -tensor.ndim <= axis < tensor.ndim:
            raise BuildFailed(f"input {name!r} has {tensor.ndim} dimensions, so dimension {axis} cannot be dynamic")
        shape[axis] = describe_dim(name, dim)
    return TensorSpec(name, tuple(shape), dtype_name(tensor.dtype), device if tensor.is_meta else tensor.device.type)


def describe_dim(name: str, dim: Any) -> DimSpec:
    """A DimSpec as it is; a named torch.export Dim, or a linear one derived from it (8*height), as a DimSpec.

    Dim.AUTO and Dim.DYNAMIC are refused: what they end up as is only known after export, too late for
    a key.
    """
    if isinstance(dim, DimSpec):
        return dim
    if not isinstance(dim, Dim):
        raise BuildFailed(f"input {name!r}: use dynamic(...) or a named Dim with min and max, not {dim!r}")
    root = getattr(dim, "root", None)
    least, most = (_bound(dim.min), _bound(dim.max))
    if root is None:
        return DimSpec(dim.__name__, 1, 0, least, most)
    offset, factor = dim.fn(0), dim.fn(1) - dim.fn(0)
    if dim.fn(7) != 7 * factor + offset:
        raise BuildFailed(f"input {name!r}: the derived dimension {dim.__name__} is not linear")
    return DimSpec(root.__name__, int(factor), int(offset), least, most)


def _bound(value: Any) -> int:
    # An open upper end is a symbolic infinity in torch.
    return min(int(value), LARGEST_DIM) if isinstance(value, int) else LARGEST_DIM


def describe_constants(module: nn.Module, device: str = "meta") -> tuple[TensorSpec, ...]:
    """Every parameter and buffer of `module` (persistent or not) by its full name; `device` as for `describe`."""
    return tuple(describe(name, tensor, device=device) for name, tensor in sorted(constants_of(module).items()))


def constants_of(module: nn.Module) -> dict[str, Tensor]:
    """name -> parameter or buffer, tied weights under each of their names."""
    named: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    named.update(module.named_buffers(remove_duplicate=False))
    return named


def entry_from_json(data: Any) -> EntrySpec:
    """Strict reverse of EntrySpec.as_json. Raises ManifestError."""
    _expect_keys(data, {"name", "inputs", "constants"}, "entry point")
    if not isinstance(data["name"], str) or not ENTRY_NAME.fullmatch(data["name"]):
        raise ManifestError(f"bad entry point name {data['name']!r}")
    for part in ("inputs", "constants"):
        if not isinstance(data[part], list) or len(data[part]) > 20_000:
            raise ManifestError(f"entry point {data['name']}: {part} is not a list of sensible length")
    inputs = tuple(tensor_from_json(item) for item in data["inputs"])
    constants = tuple(tensor_from_json(item) for item in data["constants"])
    for part, specs in (("input", inputs), ("constant", constants)):
        if len({spec.name for spec in specs}) != len(specs):
            raise ManifestError(f"entry point {data['name']}: two {part}s share a name")
    return EntrySpec(data["name"], inputs, constants)


def tensor_from_json(data: Any) -> TensorSpec:
    """Strict reverse of TensorSpec.as_json. Raises ManifestError."""
    _expect_keys(data, {"name", "shape", "dtype", "device"}, "tensor")
    name, shape = data["name"], data["shape"]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ManifestError(f"bad tensor name {name!r}")
    if not isinstance(shape, list) or len(shape) > 16:
        raise ManifestError(f"tensor {name}: bad shape")
    if not isinstance(data["device"], str) or not re.fullmatch(r"[a-z]{2,16}", data["device"]):
        raise ManifestError(f"tensor {name}: bad device")
    dtype_of(data["dtype"])
    return TensorSpec(name, tuple(_dim_from_json(name, dim) for dim in shape), data["dtype"], data["device"])


def _dim_from_json(name: str, data: Any) -> int | DimSpec:
    if is_count(data, LARGEST_DIM):
        return data
    _expect_keys(data, {"root", "factor", "offset", "least", "most"}, f"dimension of {name}")
    if not isinstance(data["root"], str) or not NAME.fullmatch(data["root"]):
        raise ManifestError(f"tensor {name}: bad dimension name")
    if not is_count(data["factor"], LARGEST_DIM) or data["factor"] < 1:
        raise ManifestError(f"tensor {name}: bad dimension factor")
    if not isinstance(data["offset"], int) or isinstance(data["offset"], bool):
        raise ManifestError(f"tensor {name}: bad dimension offset")
    if not all(is_count(data[end], LARGEST_DIM) for end in ("least", "most")) or data["least"] > data["most"]:
        raise ManifestError(f"tensor {name}: bad dimension range")
    return DimSpec(**data)


def is_count(value: Any, most: int) -> bool:
    """True for a real int (not a bool) in 0..most."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _expect_keys(data: Any, keys: set[str], what: str) -> None:
    if not isinstance(data, dict) or set(data) != keys:
        found = sorted(map(str, data)) if isinstance(data, dict) else type(data).__name__
        raise ManifestError(f"{what}: expected exactly the fields {sorted(keys)}, found {found}")


def unique_prefixes(names: Iterable[str]) -> Sequence[str]:
    """The names that are a beginning of another one. The loader selects a model's files by such a prefix."""
    ordered = sorted(names)
    return [a for a in ordered for b in ordered if a != b and b.startswith(a)]
