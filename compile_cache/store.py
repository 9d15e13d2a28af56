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
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from compile_cache import files, owner, provenance
from compile_cache.errors import PackageRefused, StoreError
from compile_cache.manifest import HEX64, PACKAGE, Manifest, checked_key, parse
from compile_cache.place import default_root
from compile_cache.quarantine import Quarantine
from compile_cache.verify import check_package, read_manifest

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Entry:
    """A verified entry: its manifest, where its package lies, and the name of the source it came from."""

    key: str
    manifest: Manifest
    package: Path
    source: str


class LocalStore:
    """A store in a folder. A source for `sources.open_first` (find) and the place where builds go (put)."""

    name = "local cache"

    def __init__(self, root: Path | None = None) -> None:
        """Opens or makes the store; `note` says what a user should know about where it is (or None).

        Raises StoreError when the folder belongs to somebody else or others may write to it: what is in
        there is native code that this process will run.
        """
        self.root, self.note = (root.absolute(), None) if root is not None else default_root()
        self._entries = self.root / "v1"
        self._incoming = self.root / "incoming"
        self._quarantine = Quarantine(self.root / "quarantine")
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
                if any(self.root.iterdir()):
                    raise StoreError(f"others may write to the store {self.root}, and what is in it would be run")
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
        manifest = self.manifest(key)
        package = self._folder(key) / PACKAGE
        check_package(package, manifest)
        origin = provenance.read(package.parent, manifest)
        return Entry(key, manifest, package, self.name if origin is None else str(origin))

    def entries(self) -> list[str]:
        """The keys in the store, verified or not, oldest first."""
        try:
            found = [item for item in self._entries.iterdir() if HEX64.fullmatch(item.name) and item.is_dir()]
            return [item.name for item in sorted(found, key=lambda item: item.stat().st_mtime)]
        except OSError:
            return []

    def manifest(self, key: str) -> Manifest:
        """The manifest of an entry, strictly read but without looking at the package. Raises PackageRefused."""
        return read_manifest(self._folder(key) / MANIFEST, key)

    def age(self, key: str) -> float:
        """When the entry was written, seconds since 1970; 0.0 when it is gone."""
        try:
            return self._folder(key).stat().st_mtime
        except OSError:
            return 0.0

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

    def put(self, manifest: Manifest, package: Path, origin: provenance.Origin | None = None) -> Entry:
        """Stores a package under its manifest's key; all or nothing, whatever kills this process.

        origin: where it came from, when it was not built here.

        When another process was first and its entry is sound, that entry is returned and ours is dropped.
        Raises StoreError (disk full, read-only), PackageRefused when package and manifest do not fit.
        """
        parse(manifest.to_json())  # what we could not read back we do not store
        key = manifest.key
        final = self._folder(key)
        incoming = self._incoming / f"{key}-{owner.mark()}"
        try:
            for folder in (self._entries, self._incoming):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner.clear(self._incoming, HEX64.pattern)
            incoming.mkdir(mode=0o700)
            with package.open("rb") as source:
                files.write_new(incoming / PACKAGE, source)
            check_package(incoming / PACKAGE, manifest)  # what arrived, not what was meant
            if origin is not None:
                provenance.write(incoming, origin)
            files.write_new(incoming / MANIFEST, manifest.to_json())
            files.sync(incoming)
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
                files.sync(self._entries)
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
        return self._quarantine.take(self._folder(key), key, reason)

    def reject(self, key: str, reason: str) -> None:
        """As a source: this entry failed to load."""
        self.quarantine(key, reason)

    def quarantined(self) -> list[tuple[str, str]]:
        """(key, reason) of what is in quarantine."""
        return self._quarantine.reasons()

    def empty_quarantine(self) -> None:
        """Removes what is in quarantine."""
        self._quarantine.empty()

    def remove(self, key: str) -> bool:
        """Removes an entry; False when it was not there. Raises StoreError when it cannot be removed."""
        folder = self._folder(key)
        if not folder.is_dir():
            return False
        try:
            self._incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
            away = self._incoming / f"{key}-{owner.mark()}"
            os.rename(folder, away)  # gone at once for everybody, then deleted at leisure
        except OSError as error:
            raise StoreError(f"cannot remove {key}: {error.strerror}") from error
        shutil.rmtree(away, ignore_errors=True)
        return True

    @contextmanager
    def building(self, key: str) -> Iterator[None]:
        """Held while this process builds `key`; waits for another that does (it may have put the entry then: look).

        The kernel frees it when its process dies. Where locks do not work everybody may build.
        """
        handle = None
        try:
            with suppress(OSError):
                self._locks.mkdir(mode=0o700, parents=True, exist_ok=True)
                handle = os.open(self._locks / checked_key(key), os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            if handle is not None:
                os.close(handle)

    # -- inner things

    def _folder(self, key: str) -> Path:
        return self._entries / checked_key(key)
