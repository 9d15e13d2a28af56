"""Where the local store lies when nobody says. Knows folders only."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


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
    fallback = Path(tempfile.gettempdir()) / f"onegraph-{os.getuid()}"
    with suppress(OSError):
        if fallback.lstat().st_uid != os.getuid() or fallback.is_symlink():  # taken by somebody else
            fallback = Path(tempfile.mkdtemp(prefix="onegraph-"))
    return fallback, f"Compiled binaries are kept in {fallback}, because {reason}; set ONEGRAPH_CACHE to choose."
