"""Private temporary folders (unpacked libraries, builds, trial runs), and the clearing of those that a
killed process left behind.

A folder's name carries the process that made it: its id and the moment it started, so that a reused
id is told apart. Only folders of that form, of this user, whose process is gone are ever removed.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compile_cache.errors import StoreError

PREFIX = "onegraph-scratch"
_FORM = re.compile(rf"{PREFIX}-(\d+)-(\d+)-[0-9a-f]{{16}}")
_made: set[Path] = set()


def make() -> Path:
    """A new empty folder, 0700. Also clears what dead processes left. Raises StoreError when there is no place."""
    parent = Path(tempfile.gettempdir())
    clear_stale(parent)
    folder = parent / f"{PREFIX}-{os.getpid()}-{started(os.getpid())}-{secrets.token_hex(8)}"
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise StoreError(f"cannot make a folder in {parent}: {error.strerror}") from error
    if not _made:
        atexit.register(_remove_all)
    _made.add(folder)
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
    _made.discard(folder)


def clear_stale(parent: Path) -> list[Path]:
    """Removes folders in `parent` whose process is gone; returns them."""
    gone = []
    for folder in parent.glob(f"{PREFIX}-*"):
        match = _FORM.fullmatch(folder.name)
        try:
            mine = folder.lstat().st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink()
        except OSError:
            continue
        if match and mine and not alive(int(match[1]), int(match[2])):
            shutil.rmtree(folder, ignore_errors=True)
            gone.append(folder)
    return gone


def started(pid: int) -> int:
    """When a process started, in the kernel's ticks since boot; 0 where that cannot be read."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def alive(pid: int, start: int) -> bool:
    """Whether the process `pid` that started at `start` still runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return start in (0, started(pid))


def _remove_all() -> None:
    # After a fork the child inherits the list, but the folders belong to the parent.
    for folder in list(_made):
        if folder.name.startswith(f"{PREFIX}-{os.getpid()}-"):
            remove(folder)
