"""One entry of a repository on the Hub, downloaded and checked in the trust order, up to where it would be run.

At one commit: small manifest, strictly read; its key; the pins; what the Hub says of the package; the package into
a private folder while hashing; its members. What is refused on the way is remembered, and not downloaded again
while it stays the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from compile_cache.deadline import Deadline
from compile_cache.errors import ManifestError, PackageRefused
from compile_cache.hub_repo import HubRepo
from compile_cache.manifest import HEX64, PACKAGE, Manifest, parse
from compile_cache.members import check_members
from compile_cache.pins import Pins
from compile_cache.refusals import Content, Refusal, Refusals


@dataclass(frozen=True)
class Fetched:
    """A checked entry: what stands in the repository, its manifest, and where its package lies."""

    content: Content
    manifest: Manifest
    package: Path


class Fetch:
    """How entries are fetched from one repository. Holds no state of a look-up."""

    def __init__(self, hub: HubRepo, pins: Pins, refusals: Refusals) -> None:
        self._hub = hub
        self._pins = pins
        self._refusals = refusals

    def __call__(self, key: str, folder: Path, deadline: Deadline) -> Fetched | None:
        """Fetches the entry of `key` into the private `folder`; None when the repository has none.

        Raises PackageRefused, PinsError, StoreError, HubError, TimeoutError.
        """
        commit = self._hub.tip(deadline)
        known = self._refusals.get(key, self._hub.repo)
        if known is not None and known.content.commit == commit:
            raise _Known(known)
        data = self._hub.manifest(key, commit, deadline)
        if data is None:
            return None
        content = Content(self._hub.repo, commit, hashlib.sha256(data).hexdigest())
        self._not_again(key, content, known)
        with self.remembering(key, content):
            manifest = read_manifest(data, key)
        self._pins.check(key, manifest.content)  # not remembered: pins may change while the content does not
        return self._package(key, content, manifest, folder / PACKAGE, known, deadline)

    def _package(
        self, key: str, content: Content, manifest: Manifest, path: Path, known: Refusal | None, deadline: Deadline
    ) -> Fetched:
        record = manifest.package
        seen = [content]

        def accept(size: int | None, name: str) -> int:
            seen.append(replace(content, package=name))
            self._not_again(key, seen[-1], known)
            with self.remembering(key, seen[-1]):
                if size is not None and size != record.size:
                    raise PackageRefused(f"the Hub's package has {size} bytes, the manifest says {record.size}")
                if HEX64.fullmatch(name) and name != record.sha256:
                    raise PackageRefused("the sha256 of the Hub's package is not the manifest's")
            return record.size

        size, sha256 = self._hub.package(key, content.commit, deadline, accept, path)
        if (size, sha256) != (record.size, record.sha256) and seen[-1].package == record.sha256:
            path.unlink(missing_ok=True)  # the Hub itself says otherwise: on the way, perhaps
            size, sha256 = self._hub.package(key, content.commit, deadline, accept, path)
        with self.remembering(key, seen[-1]):
            if size != record.size:
                more = size > record.size  # the rest was not waited for
                arrived = f"more than {record.size}" if more else str(size)
                raise PackageRefused(f"the package arrived with {arrived} bytes, the manifest says {record.size}")
            if sha256 != record.sha256:
                raise PackageRefused("the package arrived with another sha256 than the manifest's")
            if set(check_members(path)) != set(manifest.entry_points):
                raise PackageRefused("the package does not hold the manifest's entry points")
        return Fetched(seen[-1], manifest, path)

    @contextmanager
    def remembering(self, key: str, content: Content) -> Iterator[None]:
        """What is refused within is not downloaded again while `content` is what stands there."""
        try:
            yield
        except PackageRefused as error:
            self._refusals.add(key, content, str(error))
            raise

    def _not_again(self, key: str, content: Content, known: Refusal | None) -> None:
        if known is not None and known.content.same_as(content):
            self._refusals.add(key, content, known.reason)  # at this commit too: one request less next time
            raise _Known(known)


class _Known(PackageRefused):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.reason} (refused before, and the repository's content is still the same)")


def read_manifest(data: bytes, key: str) -> Manifest:
    """The manifest of `key`, strictly read. Raises PackageRefused."""
    try:
        manifest = parse(data)
    except ManifestError as error:
        raise PackageRefused(str(error)) from None
    if manifest.key != key:
        raise PackageRefused("the manifest is that of another key")
    return manifest
