"""Where this model's binary may come from: the local store, and the Hub repository that the owner named.

Naming a repository ($COMPILE_CACHE_REPO) means running its native code; there is none by default. `pins.json` in the
project's folder, if there is one, says which content alone is accepted for a key.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from compile_cache import proof
from compile_cache.errors import StoreError
from compile_cache.hub import HubStore, from_environment
from compile_cache.manifest import Manifest
from compile_cache.pins import Pinned, Pins
from compile_cache.sources import Source
from compile_cache.store import Entry, LocalStore

from ..binary import reference_calls
from ..config import ModelConfig

TRIAL_SECONDS = 120.0  # for the trial run of a download; a few, mostly for `import torch`, is what it takes
PINS = Path(__file__).parents[2] / "pins.json"


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


class Untried:
    """A repository, what of it is there being downloaded and checked, but not tried out here."""

    def __init__(self, hub: HubStore) -> None:
        self.name = hub.name
        self.find = partial(hub.pull, anew=False)
        self.reject = hub.reject


class Downloaded:
    """What was downloaded from a repository ahead; it is tried out now, and nobody is asked."""

    def __init__(self, hub: HubStore) -> None:
        self.name = hub.name
        self.find = hub.find_pulled
        self.reject = hub.reject


def hub_source(
    config: ModelConfig,
    dtype: torch.dtype,
    progress: Callable[[str], None] = lambda text: None,
    pins: Path = PINS,
) -> HubStore | None:
    """The repository, whose binaries are tried out with this model's reference calls; None where none is named."""

    def prove(package: Path, manifest: Manifest) -> None:
        proof.check(package, manifest, reference_calls(config, dtype), timeout=TRIAL_SECONDS)

    return from_environment(LocalStore(), prove, pins=_read(pins), progress=progress)


def _read(pins: Path) -> Pins:
    return Pins.read(pins) if os.path.lexists(pins) else Pins()
