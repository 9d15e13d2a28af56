"""The local store: one folder per key with a manifest and a package, written all or nothing.

    ROOT/v1/<key>/manifest.json + package.pt2     complete entries, nothing else
    ROOT/incoming/                                half-written ones; their process is in the name
    ROOT/quarantine/<key>-<n>/                    refused ones, with reason.txt
    ROOT/locks/<key>                              held while a process builds this key

Knows files, not torch: it hands out an entry only after every check that needs no loading.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from compile_cache import members, scratch
from compile_cache.errors import ManifestError, PackageRefused, StoreError
from compile_cache.manifest import HEX64, LARGEST_MANIFEST, PACKAGE, Manifest, parse
from compile_cache.place import default_root

MANIFEST = "manifest.json"
MOST_QUARANTINED = 20
_INCOMING = re.compile(r"[0-9a-f]{64}-(\d+)-(\d+)-[0-9a-f]{16}")


@dataclass(frozen=True)
class Entry:
    """A verified entry: its manifest, where its package lies, and the name of the source it came from."""

    key: str
    manifest: Manifest
    package: Path
    source: str


class LocalStore:
    """A store in a folder. A source for `sources.resolve` (find) and the place where builds go (put)."""

    name = "local cache"

    def __init__(self, root: Path | None = None) -> None:
        """Opens or makes the store; `note` says what a user should know about where it is (or None).

        Raises StoreError when the folder belongs to somebody else or others may write to it: what is in
        there is native code that this process will run.
        """
        self.root, self.note = (root.absolute(), None) if root is not None else default_root()
        self._entries = self.root / "v1"
        self._incoming = self.root / "incoming"
        self._quarantine = self.root / "quarantine"
        self._locks = self.root / "locks"
        with suppress(OSError):  # a read-only store can still be read
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_private()

    def _check_private(self) -> None:
        try:
            found = self.root.stat()
        except OSError:
            return  # not there and cannot be made: an empty store that refuses `put`
        if not stat.S_ISDIR(found.st_mode):
            raise StoreError(f"the store {self.root} is not a folder")
        if found.st_uid not in (os.getuid(), 0):
            raise StoreError(f"the store {self.root} belongs to another user")
        if found.st_mode & 0o022:
            try:
                self.root.chmod(0o700)
            except OSError:
                raise StoreError(f"others may write to the store {self.root}") from None

    # -- reading

    def find(self, key: str) -> Entry | None:
        """The verified entry of `key`, None when there is none.

        Raises PackageRefused with the reason when there is one that fails a check; it is in quarantine
        then, so that the next build can take its place.
        """
        folder = self._folder(key)
        if not folder.is_dir():
            return None
        try:
            return self.verify(key)
        except PackageRefused as error:
            self.quarantine(key, str(error))
            raise

    def verify(self, key: str) -> Entry:
        """Checks an entry fully without loading it: manifest, key, size, sha256, members. Raises PackageRefused."""
        manifest = self._manifest(key)
        package = self._folder(key) / PACKAGE
        _check_package(package, manifest)
        return Entry(key, manifest, package, self.name)

    def entries(self) -> list[str]:
        """The keys in the store, verified or not, oldest first."""
        try:
            found = [item for item in self._entries.iterdir() if HEX64.fullmatch(item.name)]
            return [item.name for item in sorted(found, key=lambda item: item.stat().st_mtime)]
        except OSError:
            return []

    def manifest(self, key: str) -> Manifest:
        """The manifest of an entry, strictly read but without looking at the package. Raises PackageRefused."""
        return self._manifest(key)

    def age(self, key: str) -> float:
        """When the entry was written, seconds since 1970; 0.0 when it is gone."""
        try:
            return self._folder(key).stat().st_mtime
        except OSError:
            return 0.0

    def _manifest(self, key: str) -> Manifest:
        try:
            with _open_plain(self._folder(key) / MANIFEST) as file:
                manifest = parse(file.read(LARGEST_MANIFEST + 1))
        except OSError as error:
            raise PackageRefused(f"the manifest cannot be read: {error.strerror}") from None
        except ManifestError as error:
            raise PackageRefused(str(error)) from None
        if manifest.key != key:
            raise PackageRefused("the manifest is that of another key")
        return manifest

    # -- writing

    def check_writable(self) -> None:
        """Raises StoreError where `put` could not begin."""
        try:
            for folder in (self._entries, self._incoming):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=folder):
                    pass
        except OSError as error:
            raise StoreError(f"cannot store a binary in {self.root}: {error.strerror or error}") from error

    def put(self, manifest: Manifest, package: Path) -> Entry:
        """Stores a package under its manifest's key; all or nothing, whatever kills this process.

        When another process was first and its entry is sound, that entry is returned and ours is dropped.
        Raises StoreError (disk full, read-only), PackageRefused when package and manifest do not fit.
        """
        parse(manifest.to_json())  # what we could not read back we do not store
        key = manifest.key
        final = self._folder(key)
        name = f"{key}-{os.getpid()}-{scratch.started(os.getpid())}-{secrets.token_hex(8)}"
        incoming = self._incoming / name
        try:
            for folder in (self._entries, self._incoming):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._clear_incoming()
            incoming.mkdir(mode=0o700)
            with package.open("rb") as source:
                _write(incoming / PACKAGE, source)
            _check_package(incoming / PACKAGE, manifest)  # what arrived, not what was meant
            _write(incoming / MANIFEST, manifest.to_json())
            _sync(incoming)
            return self._publish(key, incoming, final)
        except OSError as error:
            raise StoreError(f"cannot store the binary in {self.root}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(incoming, ignore_errors=True)

    def _publish(self, key: str, incoming: Path, final: Path) -> Entry:
        for _ in range(3):
            try:
                # Renaming onto an existing, non-empty folder fails, so the first one wins.
                os.rename(incoming, final)
                _sync(self._entries)
                return Entry(key, parse((final / MANIFEST).read_bytes()), final / PACKAGE, self.name)
            except OSError:
                if not final.is_dir():
                    raise
            try:
                return self.verify(key)
            except PackageRefused as error:
                self.quarantine(key, str(error))
        raise StoreError(f"cannot replace the broken entry {key}")

    def quarantine(self, key: str, reason: str) -> Path | None:
        """Moves an entry out of the way, keeping it with its reason; None when it was not there or cannot be moved."""
        folder = self._quarantine / f"{key}-{secrets.token_hex(4)}"
        try:
            self._quarantine.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.rename(self._folder(key), folder)
            (folder / "reason.txt").write_text(reason + "\n")
            kept = sorted(self._quarantine.iterdir(), key=lambda item: item.stat().st_mtime)
        except OSError:
            return None
        for old in kept[:-MOST_QUARANTINED]:
            shutil.rmtree(old, ignore_errors=True)
        return folder

    def reject(self, key: str, reason: str) -> None:
        """As a source: this entry failed to load."""
        self.quarantine(key, reason)

    def quarantined(self) -> list[tuple[str, str]]:
        """(key, reason) of what is in quarantine."""
        found = []
        with suppress(OSError):
            for folder in sorted(self._quarantine.iterdir()):
                reason = folder / "reason.txt"
                text = reason.read_text().strip() if reason.is_file() else "no reason noted"
                found.append((folder.name.partition("-")[0], text))
        return found

    def empty_quarantine(self) -> None:
        """Removes what is in quarantine."""
        shutil.rmtree(self._quarantine, ignore_errors=True)

    def remove(self, key: str) -> bool:
        """Removes an entry; False when it was not there. Raises StoreError when it cannot be removed."""
        folder = self._folder(key)
        if not folder.is_dir():
            return False
        try:
            self._incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
            away = self._incoming / f"{key}-{os.getpid()}-{scratch.started(os.getpid())}-{secrets.token_hex(8)}"
            os.rename(folder, away)  # gone at once for everybody, then deleted at leisure
        except OSError as error:
            raise StoreError(f"cannot remove {key}: {error.strerror}") from error
        shutil.rmtree(away, ignore_errors=True)
        return True

    @contextmanager
    def building(self, key: str, wait: bool = True) -> Iterator[bool]:
        """Held while this process builds `key`: yields True when it is ours, False when another has it.

        wait: block until the other is done (it may have put the entry by then: look again).
        The kernel frees it when its process dies. Where locks do not work everybody may build.
        """
        handle = None
        try:
            self._locks.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self._locks / self._checked(key), os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            ours = True
        except BlockingIOError:
            ours = False
        except OSError:
            ours = True
        try:
            yield ours
        finally:
            if handle is not None:
                os.close(handle)

    # -- inner things

    def _folder(self, key: str) -> Path:
        return self._entries / self._checked(key)

    @staticmethod
    def _checked(key: str) -> str:
        if not HEX64.fullmatch(key):
            raise StoreError(f"{key[:80]!r} is not a key (64 hexadecimal digits)")
        return key

    def _clear_incoming(self) -> None:
        for folder in self._incoming.iterdir():
            match = _INCOMING.fullmatch(folder.name)
            if match and not scratch.alive(int(match[1]), int(match[2])):
                shutil.rmtree(folder, ignore_errors=True)


def _check_package(package: Path, manifest: Manifest) -> None:
    """Size, sha256, members and entry points against the manifest. Raises PackageRefused."""
    try:
        with _open_plain(package) as file:
            size, sha256 = members.hash_file(file)
    except OSError as error:
        raise PackageRefused(f"the package cannot be read: {error.strerror}") from None
    if size != manifest.package.size:
        raise PackageRefused(f"the package has {size} bytes, the manifest says {manifest.package.size}")
    if sha256 != manifest.package.sha256:
        raise PackageRefused("the package's sha256 is not the manifest's")
    if set(members.check_members(package)) != set(manifest.entry_points):
        raise PackageRefused("the package does not hold the manifest's entry points")


def _open_plain(path: Path) -> BinaryIO:
    """Opens for reading, refusing links and anything that is not a plain file."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(0, "not a plain file")
    return os.fdopen(handle, "rb")


def _write(path: Path, content: bytes | BinaryIO) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            shutil.copyfileobj(content, file, 2**20)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
