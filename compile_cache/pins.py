"""The pin file: for which keys only one content is accepted, whatever a repository offers.

A JSON object, key -> `Manifest.content` (the package's sha256 where its graph spells out no tensors), both 64
hexadecimal digits. It lies in the source, so that who
changes it has changed the program. Binaries that were built here are not measured against it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compile_cache import provenance
from compile_cache.errors import PackageRefused, PinsError
from compile_cache.manifest import HEX64
from compile_cache.store import Entry, LocalStore

LARGEST = 2**20  # bytes


@dataclass(frozen=True)
class Pins:
    """key -> content; or, in `problem`, why the pins are not known: then nothing passes."""

    content: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    @staticmethod
    def read(path: Path) -> Pins:
        """The pins in a file. Never raises: those that cannot be read are pins with a problem."""
        try:
            return Pins(_parsed(path))
        except PinsError as error:
            return Pins(problem=f"the pin file {path.name} {error}")

    def check(self, key: str, content: str) -> None:
        """Raises PackageRefused when `key` is pinned to another content, PinsError when the pins are not known."""
        if self.problem:
            raise PinsError(self.problem)
        wanted = self.content.get(key, content)
        if wanted != content:
            raise PackageRefused(f"the key is pinned to the package {wanted[:12]}…, this one is {content[:12]}…")


class Pinned:
    """The local store as a source, with the pins in front of what once came from a repository."""

    def __init__(self, store: LocalStore, pins: Pins) -> None:
        self.name = store.name
        self._store = store
        self._pins = pins

    def find(self, key: str) -> Entry | None:
        """As the store's. Raises PackageRefused or PinsError too for an entry from a repository that may not pass."""
        entry = self._store.find(key)
        if entry is not None and provenance.read(entry.package.parent, entry.manifest) is not None:
            try:
                self._pins.check(key, entry.manifest.content)
            except PackageRefused as error:
                self._store.reject(key, str(error))
                raise
        return entry

    def reject(self, key: str, reason: str) -> None:
        """As the store's."""
        self._store.reject(key, reason)


def _parsed(path: Path) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise PinsError(f"has more than {LARGEST} bytes")
        pins = json.loads(data.decode("utf-8"), object_pairs_hook=_pairs)
    except OSError as error:
        raise PinsError(f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise PinsError(f"is not JSON of the right form: {error}") from None
    if not isinstance(pins, dict):
        raise PinsError("is not a JSON object, key -> sha256")
    for key, sha256 in pins.items():
        if not HEX64.fullmatch(key) or not isinstance(sha256, str) or not HEX64.fullmatch(sha256):
            raise PinsError(f"has {key[:80]!r}, which is not a key with a sha256, 64 hexadecimal digits each")
    return pins


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("a key stands there twice")
    return data
