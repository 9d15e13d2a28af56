"""Where this model's binary may come from: the local store, and the Hub repository that the owner named.

Naming a repository ($COMPILE_CACHE_REPO) means running its native code; there is none by default. `pins.json` in the
project's folder, if there is one, says which content alone is accepted for a key.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from compile_cache import proof
from compile_cache.errors import StoreError
from compile_cache.hub import HubStore, from_environment
from compile_cache.manifest import Manifest
from compile_cache.pins import Pinned, Pins
from compile_cache.sources import Source
from compile_cache.store import Entry, LocalStore

from .binary import pick_dtype, reference_calls
from .config import read_config

TRIAL_SECONDS = 120.0  # for the trial run of a download; a few, mostly for `import torch`, is what it takes
PINS = Path(__file__).parent.parent / "pins.json"


class Unusable:
    """In place of a local store that must not be used: says why, whatever it is asked for."""

    name = LocalStore.name

    def __init__(self, reason: StoreError) -> None:
        self._reason = reason

    def find(self, key: str) -> Entry | None:
        raise self._reason

    def reject(self, key: str, reason: str) -> None: ...


def local_source(pins: Path = PINS) -> Source:
    """The local store; what it once got from a repository has to pass the pins."""
    try:
        return Pinned(LocalStore(), _read(pins))
    except StoreError as error:
        return Unusable(error)


def hub_source(
    folder: Path, dtype: str = "auto", progress: Callable[[str], None] = lambda text: None, pins: Path = PINS
) -> HubStore | None:
    """The repository, whose binaries are tried out with this model's reference calls; None where none is named."""

    def prove(package: Path, manifest: Manifest) -> None:
        calls = reference_calls(read_config(folder), pick_dtype(dtype))
        proof.check(package, manifest, calls, timeout=TRIAL_SECONDS)

    return from_environment(LocalStore(), prove, pins=_read(pins), progress=progress)


def _read(pins: Path) -> Pins:
    return Pins.read(pins) if os.path.lexists(pins) else Pins()
