"""What a repository offered and was refused, so that the same content is not fetched again at every start.

One small file per key in the local store's folder. Where it cannot be written or read, nothing is remembered,
which costs a download and nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from compile_cache import files, owner
from compile_cache.manifest import HEX64, checked_key

LARGEST = 8192  # bytes


@dataclass(frozen=True)
class Content:
    """What stood under a key: in which repository, at which commit; the sha256 of the manifest's bytes; the
    repository's own name for the package's content, "" when it was refused without looking at the package.
    """

    repo: str
    commit: str
    manifest: str = ""
    package: str = ""

    def same_as(self, other: Content) -> bool:
        """Whether it is the same content, perhaps at another commit."""
        return (self.repo, self.manifest, self.package) == (other.repo, other.manifest, other.package)


@dataclass(frozen=True)
class Refusal:
    """A content and why it was refused."""

    content: Content
    reason: str


class Refusals:
    """Those noted in the folder `root`, the last one of each key."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def get(self, key: str, repo: str) -> Refusal | None:
        """What was last refused under `key` of `repo`."""
        refusal = _read(self._note(key))
        return refusal if refusal is not None and refusal.content.repo == repo else None

    def add(self, key: str, content: Content, reason: str) -> None:
        """Remembers a refusal."""
        data = json.dumps(asdict(Refusal(content, reason[:1000]))).encode()
        new = self._root / f"{key}-{owner.mark()}"
        with suppress(OSError):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.write_new(new, data)
            os.replace(new, self._note(key))

    def forget(self, key: str) -> None:
        """Whatever was refused under `key` may be fetched again."""
        with suppress(OSError):
            self._note(key).unlink()

    def _note(self, key: str) -> Path:
        return self._root / f"{checked_key(key)}.json"

    def all(self) -> list[tuple[str, Refusal]]:
        """(key, refusal) of every note."""
        found = {}
        with suppress(OSError):
            found = {path.stem: _read(path) for path in sorted(self._root.glob("*.json"))}
        return [(key, refusal) for key, refusal in found.items() if refusal is not None and HEX64.fullmatch(key)]

    def clear(self) -> None:
        """Forgets everything."""
        shutil.rmtree(self._root, ignore_errors=True)


def _read(path: Path) -> Refusal | None:
    try:
        with files.open_plain(path) as file:
            data = json.loads(file.read(LARGEST))
        refusal = Refusal(Content(**data["content"]), data["reason"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return (
        refusal if all(isinstance(text, str) for text in (*asdict(refusal.content).values(), refusal.reason)) else None
    )
