"""Private temporary folders (unpacked libraries, builds, trial runs), and the clearing of those that a
killed process left behind.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from compile_cache import owner
from compile_cache.errors import StoreError

PREFIX = "onegraph-scratch"
_made: dict[Path, int] = {}  # folder -> the process that made it


def make() -> Path:
    """A new empty folder, 0700. Also clears what dead processes left. Raises StoreError when there is no place."""
    try:
        parent = Path(tempfile.gettempdir())
    except OSError as error:
        raise StoreError("there is no temporary folder that can be written to") from error
    with suppress(OSError):
        owner.clear(parent, PREFIX)
    folder = parent / f"{PREFIX}-{owner.mark()}"
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise StoreError(f"cannot make a folder in {parent}: {error.strerror}") from error
    if not _made:
        atexit.register(_remove_all)
    _made[folder] = os.getpid()
    return folder


@contextmanager
def folder() -> Iterator[Path]:
    """A folder of `make` for the length of a with block."""
    made = make()
    try:
        yield made
    finally:
        remove(made)


def remove(folder: Path) -> None:
    """Removes a folder of `make`; missing is fine."""
    shutil.rmtree(folder, ignore_errors=True)
    _made.pop(folder, None)


def _remove_all() -> None:
    # After a fork the child inherits the list, but the folders belong to the parent.
    for folder, process in list(_made.items()):
        if process == os.getpid():
            remove(folder)
