"""Which process made a folder, written in the folder's name so that others can tell whether it is still needed.

A mark is NAMESPACE-PID-START-RANDOM. Process ids are unique within one namespace only, and containers may share a
folder; so a process id is looked up only where it was given. START tells a reused id apart.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

# Folders of other containers and machines, of which nobody here can say whether their process lives. The longest
# kept ones belong to a server that runs a GPU binary: it reads its files in its first minutes.
FOREIGN_SECONDS = 7 * 86400


def mark() -> str:
    """The end of a name for something that this process makes and removes again."""
    return f"{namespace()}-{os.getpid()}-{started(os.getpid())}-{secrets.token_hex(8)}"


def namespace() -> str:
    """12 hex digits for where this process's id holds: this start of the machine, this PID namespace."""
    parts = [platform.node()]  # some sandboxes show every container the same numbers below, but not the same name
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with suppress(OSError):
        parts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:12]


def clear(parent: Path, prefix: str) -> list[Path]:
    """Removes this user's folders "PREFIX-MARK" in `parent` whose process is gone; returns them.

    prefix: a regular expression. Folders of another namespace go by age alone. Raises OSError when `parent` cannot
    be listed.
    """
    form = re.compile(rf"{prefix}-([0-9a-f]{{12}})-(\d+)-(\d+)-[0-9a-f]{{16}}")
    here, gone = namespace(), []
    for folder in parent.iterdir():
        match = form.fullmatch(folder.name)
        if match is None:
            continue
        try:
            found = folder.lstat()
        except OSError:
            continue
        if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
            continue
        foreign = match[1] != here
        needed = time.time() - found.st_mtime < FOREIGN_SECONDS if foreign else alive(int(match[2]), int(match[3]))
        if not needed:
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
    """Whether the process `pid` that started at `start` still runs in this namespace."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return start in (0, started(pid))
