"""Two edits of a freshly linked library: no executable stack, no paths of the building machine.

Knows the ELF layout (64 bit, little endian) as far as the program headers, nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

MAGIC = b"\x7fELF\x02\x01"
GNU_STACK = 0x6474E551
EXECUTABLE = 1


def clear_execstack(path: Path) -> bool:
    """Clears the executable bit of the stack header in place; True where it was set.

    Inductor's object without constants carries no stack note, so the linker asks for an executable
    stack. Newer glibc refuses to dlopen such a library, and hardened kernels do too.
    Raises ValueError when the file is not 64-bit little-endian ELF.
    """
    with path.open("r+b") as file:
        head = file.read(64)
        if head[: len(MAGIC)] != MAGIC or len(head) < 64:
            raise ValueError("not a 64-bit little-endian ELF file")
        (table,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        for index in range(count):
            file.seek(table + index * size)
            kind, flags = struct.unpack("<II", file.read(8))
            if kind == GNU_STACK and flags & EXECUTABLE:
                file.seek(table + index * size + 4)
                file.write(struct.pack("<I", flags & ~EXECUTABLE))
                return True
    return False


def mask_paths(path: Path, folders: Iterable[str]) -> int:
    """Overwrites the given folders' names by "/___..." of equal length in place; returns how often.

    The compiler writes the names of its source files into error messages; they would publish the
    builder's home folder. Only whole folder names followed by "/" count.
    """
    data = path.read_bytes()
    hits = 0
    for folder in sorted({f.rstrip("/") for f in folders}, key=len, reverse=True):
        name = folder.encode()
        if len(name) < 4:  # "/" or "/x" could hit something that is no path
            continue
        mask = b"/" + b"_" * (len(name) - 1)
        hits += data.count(name + b"/")
        data = data.replace(name + b"/", mask + b"/")
    if hits:
        path.write_bytes(data)
    return hits
