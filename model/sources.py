"""Where this model's binary may come from: the local store, and the Hub repository that the owner named.

Naming a repository ($COMPILE_CACHE_REPO) means running its native code; there is none by default. `pins.json` in the
project's folder, if there is one, says which content alone is accepted for a key.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from compile_cache import proof
from compile_cache.hub import HubStore, from_environment
from compile_cache.manifest import Manifest
from compile_cache.pins import Pinned, Pins
from compile_cache.store import LocalStore

from .binary import pick_dtype, reference_calls
from .config import read_config

PINS = Path(__file__).parent.parent / "pins.json"


def local_source(pins: Path = PINS) -> Pinned:
    """The local store; what it once got from a repository has to pass the pins."""
    return Pinned(LocalStore(), _read(pins))


def hub_source(
    folder: Path, dtype: str = "auto", progress: Callable[[str], None] = lambda text: None, pins: Path = PINS
) -> HubStore | None:
    """The repository, whose binaries are tried out with this model's reference calls; None where none is named."""

    def prove(package: Path, manifest: Manifest) -> None:
        proof.check(package, manifest, reference_calls(read_config(folder), pick_dtype(dtype)))

    return from_environment(LocalStore(), prove, pins=_read(pins), progress=progress)


def _read(pins: Path) -> Pins:
    return Pins.read(pins) if pins.exists() else Pins()
