"""Where the local store lies when nobody says. Knows folders only."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

MOST_FALLBACKS = 16


def default_root() -> tuple[Path, str | None]:
    """(folder, note): $ONEGRAPH_CACHE, else ~/.cache/onegraph, else a private folder in the temporary one.

    The note says why the last one had to do; None otherwise.
    """
    chosen = os.environ.get("ONEGRAPH_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute(), None
    try:
        base = os.environ.get("XDG_CACHE_HOME")
        home = (Path(base) if base else Path.home() / ".cache") / "onegraph"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(home, os.W_OK | os.X_OK):
            return home, None
        reason = f"{home} is not writable"
    except (OSError, RuntimeError) as error:
        reason = f"there is no usable home folder ({getattr(error, 'strerror', None) or error})"
    fallback = _fallback()
    return fallback, f"Compiled binaries are kept in {fallback}, because {reason}; set ONEGRAPH_CACHE to choose."


def _fallback() -> Path:
    """The first of a fixed list of names in the temporary folder that is, or can be made, this user's own.

    Every process of the user finds the same one: a random name would give the process that builds another store
    than the one that waits for the binary. When somebody else has taken them all, the last one, which the store
    then refuses.
    """
    try:
        parent = Path(tempfile.gettempdir())
    except OSError:  # there is none to be written to
        parent = Path("/tmp")
    for number in range(MOST_FALLBACKS):
        folder = parent / f"onegraph-{os.getuid()}{f'-{number}' if number else ''}"
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            found = folder.lstat()
            if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
                continue
        except OSError:
            pass  # a temporary folder that cannot be written to: the store says so when it is to write
        return folder
    return folder
