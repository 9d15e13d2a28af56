"""Reading and writing single files of a store: no links followed, nothing half-written taken for whole.

Knows no torch and no layout.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO


def open_plain(path: Path) -> BinaryIO:
    """Opens for reading; OSError for a link and for anything that is not a plain file."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(0, "not a plain file")
    return os.fdopen(handle, "rb")


def write_new(path: Path, content: bytes | BinaryIO) -> None:
    """Writes a file that must not be there yet, private to this user, and on the disk when this returns."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            shutil.copyfileobj(content, file, 2**20)
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """Has the names in `folder` on the disk when this returns."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
