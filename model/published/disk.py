"""Whether something fits on a disk. Knows folders only."""

from __future__ import annotations

import shutil
from pathlib import Path

from compile_cache.deadline import megabytes


def shortage(folder: Path, needed: int) -> str | None:
    """What to say where the disk that `folder` is, or will be, on has less than `needed` bytes free; else None."""
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(there).free
    if free >= needed:
        return None
    return f"{megabytes(needed)} are needed in {folder}, but only {megabytes(free)} are free there"
