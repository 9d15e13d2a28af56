"""What may be inside a package file, checked before anything of it is used, and its safe extraction.

Knows the layout of torch's .pt2 archives; executes nothing and imports no torch.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from compile_cache.errors import PackageRefused

# The library, its metadata and call description, and the GPU kernels of CUDA, ROCm and XPU.
KEPT_SUFFIXES = (".so", ".json", ".cubin", ".fatbin", ".hsaco", ".spv")
PICKLES = re.compile(r"(^|/)(weights|constants)/|weights_config\.json$|\.(pkl|pickle|pt|pth|bin|blob|ckpt|npz|npy)$")
HOUSEKEEPING = {"archive_format", "archive_version", "byteorder", ".data/version", ".data/serialization_id"}
MODEL_FILE = re.compile(r"data/aotinductor/([a-z][a-z0-9_]{0,63})/([A-Za-z0-9_][A-Za-z0-9_.\-]{0,254})")
LARGEST_MEMBER = 2 * 2**30  # bytes, unpacked
LARGEST_TOTAL = 4 * 2**30
LARGEST_RATIO = 200  # unpacked / packed; our libraries are around 4
MOST_MEMBERS = 20_000
LARGEST_LIST = 4 * 2**20  # bytes


def check_members(path: Path) -> dict[str, tuple[str, ...]]:
    """Checks the list of members of the package at `path`: entry point -> its member names.

    Raises PackageRefused naming the first member that is not what a package of ours holds. Reads the
    list only; contents are covered by the package's sha256 and, on extraction, by the zip's checksums.
    """
    try:
        with path.open("rb") as file:
            return _checked(file)
    except OSError as error:
        raise PackageRefused(f"the package cannot be read: {error.strerror}") from None


def extract(file: IO[bytes], folder: Path) -> None:
    """Checks and unpacks an open package into the empty private `folder`. Raises PackageRefused or OSError.

    Takes an open file so that what is unpacked is what the caller has hashed. Written with O_EXCL and
    O_NOFOLLOW and within the declared sizes.
    """
    members = _checked(file)
    with zipfile.ZipFile(file) as archive:
        for name in (name for names in members.values() for name in names):
            target = folder / name
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
            mode = 0o700 if name.endswith(".so") else 0o600
            with os.fdopen(os.open(target, flags, mode), "wb") as out:
                try:
                    with archive.open(name) as source:
                        _copy(source, out, archive.getinfo(name).file_size)
                except (zipfile.BadZipFile, EOFError, ValueError, RuntimeError, struct.error, zlib.error) as error:
                    raise PackageRefused(f"member {name} is damaged: {error}") from None


def hash_file(file: IO[bytes]) -> tuple[int, str]:
    """(size in bytes, sha256 in hex) of an open file, from its beginning; rewinds it."""
    digest, size = hashlib.sha256(), 0
    file.seek(0)
    while chunk := file.read(2**20):
        digest.update(chunk)
        size += len(chunk)
    file.seek(0)
    return size, digest.hexdigest()


def _copy(source: IO[bytes], out: IO[bytes], size: int) -> None:
    left = size
    while chunk := source.read(min(2**20, left + 1)):
        left -= len(chunk)
        if left < 0:
            raise ValueError("more data than declared")
        out.write(chunk)
    if left:
        raise ValueError("less data than declared")


class _Sparing:
    """A file of which the list of members is read only if it is a short one: reading a long one takes minutes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell, self.close, self.seekable = file.seek, file.tell, file.close, file.seekable

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(LARGEST_LIST + 1 if size < 0 else min(size, LARGEST_LIST + 1))
        if len(data) > LARGEST_LIST:
            raise PackageRefused(f"the package's list of members has more than {LARGEST_LIST} bytes")
        return data


def _checked(file: IO[bytes]) -> dict[str, tuple[str, ...]]:
    file.seek(0)
    try:
        with zipfile.ZipFile(_Sparing(file)) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise PackageRefused(f"the package is not a readable archive: {error}") from None
    if not 1 <= len(infos) <= MOST_MEMBERS:
        raise PackageRefused(f"the package has {len(infos)} members")
    seen: set[str] = set()
    for info in infos:
        # zipfile cuts a name at a zero byte and replaces the other separator; look at the raw one.
        _check_name(info.orig_filename, seen)
        _check_info(info)
    if sum(info.file_size for info in infos) > LARGEST_TOTAL:
        raise PackageRefused(f"the package unpacks to more than {LARGEST_TOTAL} bytes")
    return _by_entry([info.filename for info in infos])


def _check_name(name: str, seen: set[str]) -> None:
    shown = repr(name[:120])
    if "\\" in name:
        raise PackageRefused(f"member {shown} has a backslash in its name")
    if name.startswith("/") or re.match(r"[A-Za-z]:", name):
        raise PackageRefused(f"member {shown} has an absolute path")
    parts = name.split("/")
    if ".." in parts:
        raise PackageRefused(f"member {shown} leads out of the package")
    if "" in parts or "." in parts or not name.isprintable() or not name.isascii():
        raise PackageRefused(f"member {shown} has an unclean name")
    if name.casefold() in seen:
        raise PackageRefused(f"member {shown} is there twice")
    seen.add(name.casefold())


def _check_info(info: zipfile.ZipInfo) -> None:
    shown = repr(info.filename[:120])
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind == stat.S_IFLNK:
        raise PackageRefused(f"member {shown} is a link")
    if kind not in (0, stat.S_IFREG) or info.is_dir():
        raise PackageRefused(f"member {shown} is not a plain file")
    if info.flag_bits & 0x1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise PackageRefused(f"member {shown} is encrypted or packed in an unknown way")
    if info.file_size > LARGEST_MEMBER or info.file_size > LARGEST_RATIO * max(info.compress_size, 64):
        raise PackageRefused(f"member {shown} is oversize: {info.file_size} bytes")


def _by_entry(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    roots = {name.partition("/")[0] for name in names}
    if len(roots) != 1:
        raise PackageRefused("the package's members are not in one folder")
    entries: dict[str, list[str]] = {}
    for name in names:
        inner = name.partition("/")[2]
        if inner in HOUSEKEEPING:
            continue
        if PICKLES.search(inner):
            raise PackageRefused(f"member {name!r} looks like pickled weights or constants, which do not belong here")
        match = MODEL_FILE.fullmatch(inner)
        if match is None or not inner.endswith(KEPT_SUFFIXES):
            raise PackageRefused(f"member {name!r} does not belong in a package")
        entries.setdefault(match[1], []).append(name)
    for entry, files in entries.items():
        if sum(name.endswith(".wrapper.so") for name in files) != 1:
            raise PackageRefused(f"entry point {entry} does not have exactly one library")
    return {entry: tuple(sorted(files)) for entry, files in entries.items()}
