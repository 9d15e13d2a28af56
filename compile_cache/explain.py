"""Why a stored binary is not the one for here: which fields of its key differ, with both values.

Compares data only; of the store it reads the manifests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from compile_cache.errors import PackageRefused, shown
from compile_cache.key import FIELD_NAMES, environment, key_of
from compile_cache.store import LocalStore


class Absent:
    """Stands for a field that one side does not have; None is a value."""

    def __repr__(self) -> str:
        return "not there"


ABSENT = Absent()
LONGEST = 72  # characters of a value in a text


class Difference(NamedTuple):
    """One field of the key, by its dotted name, and its two values."""

    field: str
    here: Any
    there: Any

    def as_json(self) -> dict[str, Any]:
        """`here` and `there` are left out where the field is not there."""
        values = {"here": self.here, "there": self.there}
        return {"field": self.field, **{name: value for name, value in values.items() if value is not ABSENT}}

    def __str__(self) -> str:
        here, there = self.here, self.there
        if isinstance(here, list) and isinstance(there, list):  # long, and alike but for a few
            here, there = [item for item in here if item not in there], [item for item in there if item not in here]
            return f"{self.field}: only here {_short(here)}, only there {_short(there)}"
        return f"{self.field}: here {_short(here)}, there {_short(there)}"


@dataclass(frozen=True)
class Explained:
    """A stored entry against the fields here. No differences and no error: it is the binary for here."""

    key: str
    differences: tuple[Difference, ...] = ()
    error: str | None = None  # why its manifest cannot be read

    def as_json(self) -> dict[str, Any]:
        return {"key": self.key, "error": self.error, "differences": [item.as_json() for item in self.differences]}


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[Difference]:
    """Every field in which two keys' fields, or parts of them, differ, in the order of `here`.

    Lists of named things (entry points, inputs, weights) are compared by name, other lists as a whole.
    """
    return list(_walk("", here, there))


def explain(store: LocalStore, fields: Mapping[str, Any]) -> list[Explained]:
    """Every entry of the store against `fields` (all of a key's, or some), the most similar first."""
    found = []
    for key in store.entries():
        try:
            theirs = store.manifest(key).fields
        except PackageRefused as error:
            found.append(Explained(key, error=str(error)))
            continue
        found.append(Explained(key, tuple(differences(fields, {name: theirs[name] for name in fields}))))
    return sorted(found, key=lambda item: (item.error is not None, len(item.differences)))


def report(store: LocalStore, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields here, their key where they are complete, and every stored entry against them, JSON-able."""
    key = key_of(fields) if set(fields) == set(FIELD_NAMES) else None
    entries = [item.as_json() for item in explain(store, fields)]
    return {"store": str(store.root), "key": key, "fields": dict(fields), "entries": entries}


def report_words(store: LocalStore, fields: Mapping[str, Any]) -> list[str]:
    """The same for people, in lines."""
    lines = []
    if set(fields) == set(FIELD_NAMES):
        key = key_of(fields)
        lines.append(f"key here: {key}, {'stored' if key in store.entries() else 'not stored'} in {store.root}")
    for name in ("environment", "options", "config", "kernels"):
        lines += [f"  {name}.{part}: {_short(value)}" for part, value in sorted(fields.get(name, {}).items())]
    lines += [f"  sources: {fields['sources']}"] if "sources" in fields else []
    found = explain(store, fields)
    return [*lines, *(line for item in found for line in words(item))] + ([] if found else ["nothing is stored"])


def misfits(fields: Mapping[str, Any]) -> list[Difference]:
    """In what the environment in a stored key's fields differs from what that binary would find on this machine."""
    there = fields["environment"]
    try:
        here = environment(there["device"], fields["options"])
    except (RuntimeError, AssertionError, LookupError, TypeError, ValueError):  # no such device here
        here = {**there, "device": ABSENT}
    return differences({"environment": here}, {"environment": there})


def words(explained: Explained, most: int = 12) -> list[str]:
    """The same for people: one line per entry, then one per difference, `most` of them."""
    name = explained.key[:16]
    if explained.error is not None:
        return [f"{name}  cannot be used: {explained.error}"]
    count = len(explained.differences)
    if not count:
        return [f"{name}  fits"]
    more = [f"    and {count - most} more"] if count > most else []
    head = f"{name}  differs in {count} {'field' if count == 1 else 'fields'}:"
    return [head, *(f"    {item}" for item in explained.differences[:most]), *more]


def _walk(name: str, here: Any, there: Any) -> Iterator[Difference]:
    ours, theirs = _named(here), _named(there)
    if ours is None or theirs is None:
        if here != there or isinstance(here, bool) != isinstance(there, bool):
            yield Difference(name, here, there)
        return
    for part in dict.fromkeys([*ours, *theirs]):
        yield from _walk(f"{name}.{part}" if name else part, ours.get(part, ABSENT), theirs.get(part, ABSENT))


def _named(value: Any) -> Mapping[str, Any] | None:
    """A value's named parts; None for what is compared as a whole."""
    if isinstance(value, Mapping):
        return value
    if (
        isinstance(value, Sequence)
        and value
        and all(isinstance(item, Mapping) and isinstance(item.get("name"), str) for item in value)
    ):
        return {item["name"]: {part: v for part, v in item.items() if part != "name"} for item in value}
    return None


def _short(value: Any) -> str:
    return shown(str(value), LONGEST)
