"""The manifest: what a stored package is, in clear, and the strict reader for it.

A manifest may come from somebody else, so reading refuses everything that the schema does not name.
It is data: nothing in it is ever executed, and paths do not occur in it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from compile_cache.errors import ManifestError, StoreError
from compile_cache.key import FIELD_NAMES, SCHEMA, canonical, key_of
from compile_cache.specs import EntrySpec, dtype_name, dtype_of, entry_from_json, is_count

PACKAGE = "package.pt2"
LARGEST_MANIFEST = 8 * 2**20  # bytes
LARGEST_PACKAGE = 4 * 2**30  # bytes
LARGEST_LITERAL = 1024  # values
LONGEST_TEXT = 4096  # characters of one text in the key's fields
HEX64 = re.compile(r"[0-9a-f]{64}")


def checked_key(key: str) -> str:
    """The key, which becomes a part of paths. Raises StoreError for what is none."""
    if not HEX64.fullmatch(key):
        raise StoreError(f"{key[:80]!r} is not a key (64 hexadecimal digits)")
    return key


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and sha256 (64 hex) of a stored file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Literal:
    """A small tensor that the source code itself spells out, e.g. torch.tensor([1., 2.]) in forward."""

    dtype: str
    shape: tuple[int, ...]
    values: tuple[bool | int | float | str, ...]

    @staticmethod
    def of(tensor: Tensor) -> Literal:
        flat = tensor.detach().cpu().reshape(-1).tolist()
        # JSON has no infinities; they travel as "inf", "-inf", "nan".
        values = tuple(str(v) if isinstance(v, float) and v - v != 0 else v for v in flat)
        return Literal(dtype_name(tensor.dtype), tuple(tensor.shape), values)

    def tensor(self, device: torch.device | str) -> Tensor:
        values = [float(v) if isinstance(v, str) else v for v in self.values]
        return torch.tensor(values, dtype=dtype_of(self.dtype)).reshape(self.shape).to(device)


@dataclass(frozen=True)
class EntryFigures:
    """What building one entry point took and gave. `ops`: operator -> times used, subgraphs included."""

    export_seconds: float
    compile_seconds: float
    nodes: int
    ops: Mapping[str, int]


@dataclass(frozen=True)
class Manifest:
    """Everything about one stored binary.

    bound: entry point -> names of the weights it really uses (a subset of the key's constants).
    literals: entry point -> name -> Literal, bound by us.
    reference: sha256 of the outputs of the reference calls, or None where none were made.
    built_at: UTC, "2026-01-31T12:00:00Z". compiler: name and version of the C++ compiler used.
    """

    schema: int
    key: str
    fields: Mapping[str, Any]
    files: Mapping[str, FileRecord]
    bound: Mapping[str, tuple[str, ...]]
    literals: Mapping[str, Mapping[str, Literal]]
    figures: Mapping[str, EntryFigures]
    reference: str | None
    built_at: str
    compiler: str
    publisher: str
    licence: str

    @property
    def entry_points(self) -> dict[str, EntrySpec]:
        """name -> EntrySpec."""
        specs = (entry_from_json(item) for item in self.fields["entry_points"])
        return {spec.name: spec for spec in specs}

    @property
    def package(self) -> FileRecord:
        return self.files[PACKAGE]

    @property
    def content(self) -> str:
        """64 hex for what is computed: the package's sha256; with literals, which we bind to it, a hash over both."""
        literals = {name: {key: asdict(item) for key, item in items.items()} for name, items in self.literals.items()}
        if not any(literals.values()):
            return self.package.sha256
        return hashlib.sha256(canonical({"package": self.package.sha256, "literals": literals})).hexdigest()

    @property
    def seconds(self) -> float:
        """What the build cost, seconds."""
        return sum(item.export_seconds + item.compile_seconds for item in self.figures.values())

    def to_json(self) -> bytes:
        """Indented for readers; `parse` takes it back."""
        return (json.dumps(asdict(self), indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def parse(data: bytes) -> Manifest:
    """Strictly reads a manifest and recomputes its key. Raises ManifestError saying what is wrong."""
    if len(data) > LARGEST_MANIFEST:
        raise ManifestError(f"the manifest has {len(data)} bytes, more than {LARGEST_MANIFEST}")
    try:
        raw = json.loads(data.decode("utf-8"), object_pairs_hook=_no_doubles,
                         parse_constant=_no_constant, parse_float=_finite)  # fmt: skip
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"the manifest is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ManifestError("the manifest is not a JSON object")
    if raw.get("schema") != SCHEMA:
        raise ManifestError(f"the manifest has schema {raw.get('schema')!r}, this version reads {SCHEMA}")
    _exactly(raw, {field.name for field in fields(Manifest)}, "the manifest")
    manifest = Manifest(
        schema=SCHEMA,
        key=_text(raw, "key", HEX64),
        fields=_key_fields(raw["fields"]),
        files=_files(raw["files"]),
        bound=_bound(raw["bound"]),
        literals=_literals(raw["literals"]),
        figures=_figures(raw["figures"]),
        reference=None if raw["reference"] is None else _text(raw, "reference", HEX64),
        built_at=_text(raw, "built_at", re.compile(r"2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\dZ")),
        compiler=_text(raw, "compiler"),
        publisher=_text(raw, "publisher"),
        licence=_text(raw, "licence"),
    )
    _consistent(manifest)
    return manifest


def _consistent(manifest: Manifest) -> None:
    if key_of(manifest.fields) != manifest.key:
        raise ManifestError("the manifest's key is not the hash of its fields")
    entry_points = manifest.entry_points
    for part in ("bound", "literals", "figures"):
        _exactly(getattr(manifest, part), set(entry_points), part)
    for name, spec in entry_points.items():
        known = {constant.name for constant in spec.constants}
        stray = sorted(set(manifest.bound[name]) - known)
        if stray:
            raise ManifestError(f"entry point {name} binds weights that its key does not name: {stray[:3]}")
        double = sorted(set(manifest.literals[name]) & known)
        if double:
            raise ManifestError(f"entry point {name} has literals named like weights: {double[:3]}")


def _key_fields(raw: Any) -> dict[str, Any]:
    _exactly(raw, set(FIELD_NAMES), "the key's fields")
    points = raw["entry_points"]
    if not isinstance(points, list) or not 1 <= len(points) <= 64:
        raise ManifestError("the key's entry points are not a list of 1 to 64")
    names = [entry_from_json(item).name for item in points]
    if len(set(names)) != len(names):
        raise ManifestError("two entry points share a name")
    for part in ("environment", "config", "options", "kernels"):
        if not isinstance(raw[part], dict):
            raise ManifestError(f"the key's field {part} is not an object")
    if not isinstance(raw["environment"].get("cpu"), dict):
        raise ManifestError("the key's field environment.cpu is not an object")
    if not isinstance(raw["sources"], str):
        raise ManifestError("the key's field sources is not a text")
    if not _printable(raw):
        raise ManifestError("the key's fields hold text that cannot be printed, or much of it")
    canonical(raw)
    return raw


def _printable(value: Any) -> bool:
    """Whether every name and text in it is printable and of moderate length."""
    if isinstance(value, dict):
        return all(_printable(part) for item in value.items() for part in item)
    if isinstance(value, list):
        return all(map(_printable, value))
    return not isinstance(value, str) or (value.isprintable() and len(value) <= LONGEST_TEXT)


def _files(raw: Any) -> dict[str, FileRecord]:
    _exactly(raw, {PACKAGE}, "files")
    record = raw[PACKAGE]
    _exactly(record, {"size", "sha256"}, PACKAGE)
    if not is_count(record["size"], LARGEST_PACKAGE):
        raise ManifestError(f"{PACKAGE}: the size {record['size']!r} is not within 0..{LARGEST_PACKAGE}")
    return {PACKAGE: FileRecord(record["size"], _text(record, "sha256", HEX64))}


def _bound(raw: Any) -> dict[str, tuple[str, ...]]:
    bound = _object(raw, "bound")
    for name, names in bound.items():
        if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
            raise ManifestError(f"bound: {name} is not a list of names")
        if len(set(names)) != len(names):
            raise ManifestError(f"bound: {name} names a weight twice")
    return {name: tuple(names) for name, names in bound.items()}


def _literals(raw: Any) -> dict[str, dict[str, Literal]]:
    return {
        entry: {name: _literal(name, item) for name, item in _object(items, entry).items()}
        for entry, items in _object(raw, "literals").items()
    }


def _literal(name: str, raw: Any) -> Literal:
    _exactly(raw, {"dtype", "shape", "values"}, f"literal {name}")
    shape, values = raw["shape"], raw["values"]
    dtype_of(raw["dtype"])
    if not isinstance(shape, list) or not all(is_count(size, LARGEST_LITERAL) for size in shape) or len(shape) > 8:
        raise ManifestError(f"literal {name}: bad shape")
    count = 1
    for size in shape:
        count *= size
    if not isinstance(values, list) or len(values) != count or count > LARGEST_LITERAL:
        raise ManifestError(f"literal {name}: the number of values does not fit its shape")
    if not all(isinstance(v, bool | int | float) or v in ("inf", "-inf", "nan") for v in values):
        raise ManifestError(f"literal {name}: a value is not a number")
    return Literal(raw["dtype"], tuple(shape), tuple(values))


def _figures(raw: Any) -> dict[str, EntryFigures]:
    figures = {}
    for name, item in _object(raw, "figures").items():
        _exactly(item, {field.name for field in fields(EntryFigures)}, f"figures of {name}")
        numbers = (item["export_seconds"], item["compile_seconds"])
        if not all(isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n < 1e7 for n in numbers):
            raise ManifestError(f"figures of {name}: bad seconds")
        ops = _object(item["ops"], f"ops of {name}")
        if not is_count(item["nodes"], 10**8) or not all(is_count(n, 10**8) for n in ops.values()):
            raise ManifestError(f"figures of {name}: bad counts")
        figures[name] = EntryFigures(*map(float, numbers), item["nodes"], ops)
    return figures


def _text(raw: Mapping[str, Any], name: str, pattern: re.Pattern[str] | None = None) -> str:
    value = raw[name]
    if not isinstance(value, str) or len(value) > 500 or not value.isprintable():
        raise ManifestError(f"{name} is not a short printable text")
    if pattern is not None and not pattern.fullmatch(value):
        raise ManifestError(f"{name} has the wrong form")
    return value


def _object(raw: Any, what: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ManifestError(f"{what} is not an object")
    return raw


def _exactly(raw: Any, names: set[str], what: str) -> None:
    if not isinstance(raw, Mapping):
        raise ManifestError(f"{what} is not an object")
    missing, unknown = sorted(names - set(raw)), sorted(set(raw) - names)
    if missing:
        raise ManifestError(f"{what}: missing field {missing[0]}")
    if unknown:
        raise ManifestError(f"{what}: unknown field {unknown[0][:60]!r}")


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ManifestError("the manifest has a field twice")
    return data


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ManifestError(f"the manifest holds the number {text[:40]}, which is too large")
    return value


def _no_constant(text: str) -> Any:
    raise ManifestError(f"the manifest holds {text}, which is not JSON")
