"""Where a stored entry came from: a small file beside its manifest, for entries that were not built here.

Only said, never trusted: nothing is decided by it but which line people read, and whether a pin file applies.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from compile_cache import files
from compile_cache.manifest import HEX64, Manifest

NAME = "origin.json"
LARGEST = 4096  # bytes
COMMIT = re.compile(r"[0-9a-f]{40}")
REPO = re.compile(r"[A-Za-z0-9_.-]{1,96}/[A-Za-z0-9_.-]{1,96}")


@dataclass(frozen=True)
class Origin:
    """A Hub repository ("owner/name") at a commit (40 hex digits), and the sha256 of the package that came from it."""

    repo: str
    commit: str
    sha256: str

    def __str__(self) -> str:
        return f"Hub {self.repo} at {self.commit[:7]}"


def write(folder: Path, origin: Origin) -> None:
    """Notes the origin of the entry that is being written in `folder`. Raises OSError."""
    files.write_new(folder / NAME, json.dumps(asdict(origin)).encode())


def read(folder: Path, manifest: Manifest) -> Origin | None:
    """The origin of the entry in `folder`; None for one that was built here or whose note is not about this package."""
    try:
        with files.open_plain(folder / NAME) as file:
            origin = Origin(**json.loads(file.read(LARGEST)))
        forms = ((REPO, origin.repo), (COMMIT, origin.commit), (HEX64, origin.sha256))
        sound = all(form.fullmatch(text) for form, text in forms)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return origin if sound and origin.sha256 == manifest.package.sha256 else None
