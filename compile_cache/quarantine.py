"""Where refused entries go: out of the way, kept with the reason for whoever looks into it, bounded in number."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from compile_cache.errors import shown

MOST = 20


class Quarantine:
    """The folder ROOT with one folder <key>-<n> per refused entry, its reason in reason.txt."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def take(self, folder: Path, key: str, reason: str) -> Path | None:
        """Moves an entry's folder in here; None when it was not there or cannot be moved."""
        kept = self._root / f"{key}-{secrets.token_hex(4)}"
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.rename(folder, kept)
            (kept / "reason.txt").write_text(shown(reason) + "\n")
            ordered = sorted(self._root.iterdir(), key=lambda item: item.stat().st_mtime)
        except OSError:
            return None
        for old in ordered[:-MOST]:
            shutil.rmtree(old, ignore_errors=True)
        return kept

    def reasons(self) -> list[tuple[str, str]]:
        """(key, reason) of what is in here."""
        found = []
        with suppress(OSError):
            for folder in sorted(self._root.iterdir()):
                reason = folder / "reason.txt"
                text = shown(reason.read_text(errors="replace").strip()) if reason.is_file() else "no reason noted"
                found.append((folder.name.partition("-")[0], text))
        return found

    def empty(self) -> None:
        """Removes everything in here."""
        shutil.rmtree(self._root, ignore_errors=True)
