"""Where a binary may come from, asked in order, with a record of what was passed over and why.

A source is anything with a name, `find` and `reject`: the local store now, a Hub repository beside it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from compile_cache.binary import Binary, open_binary
from compile_cache.errors import CompileCacheError, PackageRefused, StoreError, shown
from compile_cache.store import Entry


class Source(Protocol):
    """Hands out verified entries. `name` is shown to users."""

    name: str

    def find(self, key: str) -> Entry | None:
        """The entry, None when there is none. Raises CompileCacheError when it cannot be used or asked for."""
        ...

    def reject(self, key: str, reason: str) -> None:
        """Called when an entry handed out failed to load: must not be handed out again as it is."""
        ...


@dataclass(frozen=True)
class Attempt:
    """One source asked: what came of it and, unless it was a hit, why. `seconds`: how long it took."""

    source: str
    outcome: Literal["hit", "miss", "refused", "error"]
    reason: str
    seconds: float

    def __str__(self) -> str:
        if self.outcome == "miss":
            return f"{self.source} has none"
        return f"{self.source}: {self.outcome}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class Resolution:
    """The answer for a key: the entry, or None, and every source that was tried, in order."""

    key: str
    entry: Entry | None
    tried: tuple[Attempt, ...] = field(default=())

    @property
    def reason(self) -> str:
        """One line for people."""
        return "; ".join(map(str, self.tried)) or "no source to look in"


def find_first(key: str, sources: Sequence[Source]) -> Resolution:
    """The first source's entry that is verified, not opened. Nothing that a source does raises here."""
    tried: list[Attempt] = []
    for source in sources:
        entry, attempt = _ask(key, source)
        tried.append(attempt)
        if entry is not None:
            return Resolution(key, entry, tuple(tried))
    return Resolution(key, None, tuple(tried))


def open_first(
    key: str,
    sources: Sequence[Source],
    constants: Mapping[str, Mapping[str, Tensor]],
    *,
    device: torch.device | str | None = None,
) -> tuple[Binary | None, Resolution]:
    """The first source's entry that is verified and loads, opened; None where there is none, and what was tried.

    A package that does not load is rejected and the next source asked. Nothing that a source does raises here.
    Raises ConstantMismatch or InputMismatch: the caller's weights are wrong, no other source would help.
    """
    tried: list[Attempt] = []
    for source in sources:
        entry, attempt = _ask(key, source)
        if entry is None:
            tried.append(attempt)
            continue
        started = time.monotonic()
        try:
            binary = open_binary(entry.package, constants, entry.manifest, device=device)
        except PackageRefused as error:
            source.reject(key, str(error))
            tried.append(Attempt(source.name, "refused", str(error), time.monotonic() - started))
            continue
        except StoreError as error:
            tried.append(Attempt(source.name, "error", str(error), time.monotonic() - started))
            continue
        tried.append(attempt)
        return binary, Resolution(key, entry, tuple(tried))
    return None, Resolution(key, None, tuple(tried))


def _ask(key: str, source: Source) -> tuple[Entry | None, Attempt]:
    started = time.monotonic()

    def attempt(outcome: Literal["hit", "miss", "refused", "error"], reason: str = "") -> Attempt:
        return Attempt(source.name, outcome, reason, time.monotonic() - started)

    try:
        entry = source.find(key)
    except PackageRefused as error:
        return None, attempt("refused", str(error))
    except CompileCacheError as error:
        return None, attempt("error", str(error))
    except Exception as error:  # a source must not be able to stop the search
        return None, attempt("error", shown(f"{type(error).__name__}: {error}", 300))
    if entry is None:
        return None, attempt("miss")
    if entry.key != key or entry.manifest.key != key:
        return None, attempt("refused", "it handed out another key's entry")
    return entry, attempt("hit")
