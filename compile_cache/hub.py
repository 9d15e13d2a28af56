"""A repository on the Hub as a source of binaries, and the place where builds are shared.

Naming a repository means running its native code. So an entry is read at one commit, checked, tried out in a
process of its own, and kept in the local store, from where the next start takes it without asking anybody. What
was refused is remembered and not fetched again. No call takes longer than its limits.

In the local store's folder lie refused/ (see `refusals`) and pulled/, a store of entries that were downloaded ahead
and not tried out yet.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from compile_cache import provenance, scratch
from compile_cache.deadline import Deadline, Limits, bounded, megabytes
from compile_cache.errors import (
    CompileCacheError,
    HubError,
    PackageRefused,
    SmokeFailed,
    StoreError,
    TrialUnfinished,
    shown,
)
from compile_cache.hub_fetch import Fetch, Fetched, read_manifest
from compile_cache.hub_publish import Published, publish
from compile_cache.hub_repo import HubRepo
from compile_cache.manifest import Manifest
from compile_cache.pins import Pins
from compile_cache.refusals import Content, Refusals
from compile_cache.store import Entry, LocalStore

VARIABLE = "COMPILE_CACHE_REPO"
FOLDERS = REFUSED, PULLED = "refused", "pulled"
LIMITS = Limits()
T = TypeVar("T")
Prove = Callable[[Path, Manifest], None]


def from_environment(
    local: LocalStore, prove: Prove, *, pins: Pins | None = None, progress: Callable[[str], None] = lambda text: None
) -> HubStore | None:
    """The repository that $COMPILE_CACHE_REPO names, with $HF_TOKEN for writing if set; None when it names none.

    Never raises for what they say: a bad name is the answer of `find`.
    """
    repo = os.environ.get(VARIABLE, "").strip()
    if not repo:
        return None
    return HubStore(repo, local, prove, pins=pins, token=os.environ.get("HF_TOKEN"), progress=progress)


class HubStore:
    """A source for `sources.open_first`. There is no default repository: the caller names one."""

    def __init__(
        self,
        repo: str,
        local: LocalStore,
        prove: Prove,
        *,
        pins: Pins | None = None,
        token: str | None = None,
        endpoint: str | None = None,
        limits: Limits = LIMITS,
        publish_seconds: float = 300.0,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        """repo: "owner/name". prove(package, manifest): the trial run in a child process, raises SmokeFailed.

        token: for publishing; for reading it is sent only where the repository cannot be seen without.
        endpoint: the Hub's address; None for that of huggingface_hub (HF_ENDPOINT).
        """
        repo = shown(repo, 200)  # what is cut or cleaned here is no name that could be asked for
        self.name = f"Hub {repo}"
        self.repo = repo
        self._local = local
        self._prove = prove
        self._token = (token or "").strip() or None
        self._hub = HubRepo(repo, self._token, endpoint)
        self._limits = limits
        self._publish_seconds = publish_seconds
        self._progress = progress
        self.refusals = Refusals(local.root / REFUSED)
        self._pins = pins or Pins()
        self._fetch = Fetch(self._hub, self._pins, self.refusals)
        self._handed: dict[str, Content] = {}

    @property
    def can_publish(self) -> bool:
        """Whether there is a token to write with."""
        return self._token is not None

    def find(self, key: str) -> Entry | None:
        """The entry of `key`, checked, proven and in the local store; None when the repository has none.

        One that was pulled needs no request. Raises PackageRefused when there is one that fails a check, HubError
        when the Hub cannot be asked or is not done in time, StoreError when there is no room.
        """
        entry = self.find_pulled(key)
        if entry is not None:
            return entry
        folder = scratch.make()
        kept = False
        try:
            fetched = self.fetch(key, folder)
            if fetched is None:
                return None
            entry = self._take(fetched)
            kept = entry.package.parent == folder
            return entry
        finally:
            if not kept:
                scratch.remove(folder)

    def find_pulled(self, key: str) -> Entry | None:
        """An entry that was pulled from this repository, tried out now and moved to the local store; None where the
        Hub is to be asked. Makes no request. Raises like `find`."""
        if not (self._local.root / PULLED).is_dir():
            return None
        pulled = self._pulled()
        try:
            entry = pulled.find(key)
            origin = None if entry is None else provenance.read(entry.package.parent, entry.manifest)
            if origin is None or origin.repo != self.repo:
                return None
            self._pins.check(key, entry.manifest.content)
        except PackageRefused as error:  # damaged meanwhile, or pinned to another content
            pulled.reject(key, str(error))
            return None
        try:
            taken = self._take(Fetched(Content(self.repo, origin.commit), entry.manifest, entry.package))
        except PackageRefused as error:
            pulled.reject(key, str(error))
            raise
        if taken.package != entry.package:
            with suppress(StoreError):
                pulled.remove(key)
        return taken

    def pull(self, key: str, *, anew: bool = True) -> Entry | None:
        """Downloads an entry for a later `find`, which tries it out; None when the repository has none.

        anew: whether to look again at what was refused before. Raises like `find`.
        """
        if anew:
            self.refusals.forget(key)
        with scratch.folder() as folder:
            fetched = self.fetch(key, folder)
            if fetched is None:
                return None
            pulled = self._pulled()
            pulled.remove(key)
            origin = self._origin(fetched)
            return replace(pulled.put(fetched.manifest, fetched.package, origin), source=str(origin))

    def reject(self, key: str, reason: str) -> None:
        """The entry handed out did not load here: neither it nor the same content is handed out again."""
        if key in self._handed:
            self.refusals.add(key, self._handed.pop(key), reason)
        self._local.reject(key, reason)

    def publish(self, entry: Entry) -> Published:
        """Offers a local entry to everybody who names this repository. Raises HubError, also without a token."""
        if self._token is None:
            raise HubError("there is no token (HF_TOKEN), so nothing is published")
        seconds = self._publish_seconds
        deadline = Deadline(Limits(ask=seconds, download=seconds, stall=seconds))
        try:
            return self._within(deadline, lambda: publish(entry, self._hub, self._token, deadline))
        except HubError as error:
            raise HubError(f"not published: {error}") from None

    def keys(self) -> tuple[str, list[str]]:
        """(commit of main, keys in the repository). Raises HubError."""
        deadline = Deadline(self._limits)

        def work() -> tuple[str, list[str]]:
            commit = self._hub.tip(deadline)
            return commit, self._hub.keys(commit, deadline)

        return self._within(deadline, work)

    def manifest(self, key: str, commit: str | None = None) -> Manifest | None:
        """A manifest of the repository, strictly read, at a commit or at main; None when there is none.

        Raises PackageRefused, HubError.
        """
        deadline = Deadline(self._limits)

        def work() -> Manifest | None:
            data = self._hub.manifest(key, commit or self._hub.tip(deadline), deadline)
            return None if data is None else read_manifest(data, key)

        return self._within(deadline, work)

    def fetch(self, key: str, folder: Path) -> Fetched | None:
        """Downloads an entry into the private `folder` and checks all that can be checked without running it.

        Raises like `find`; what it refuses is remembered.
        """
        deadline = Deadline(self._limits)
        return self._within(deadline, lambda: self._fetch(key, folder, deadline))

    # -- inner things

    def _within(self, deadline: Deadline, work: Callable[[], T]) -> T:
        told = -1

        def tell(done: int, total: int) -> None:
            nonlocal told
            tenths = 10 * done // max(total, 1)
            if tenths > told:
                told = tenths
                self._progress(f"downloading from {self.repo}: {10 * tenths} % of {megabytes(total)}")

        try:
            return bounded(work, deadline, tell)
        except HubError as error:  # may quote what the Hub said
            raise HubError(self._without_token(str(error))) from None
        except CompileCacheError:
            raise
        except TimeoutError as error:
            raise HubError(str(error)) from None
        except Exception as error:  # of the HTTP library, or of the one that uploads
            text = self._without_token((str(error).strip().splitlines() or [""])[0])
            raise HubError(f"the Hub could not be asked ({type(error).__name__}: {text[:200]})") from None

    def _without_token(self, text: str) -> str:
        return text.replace(self._token, "<token>") if self._token else text

    def _pulled(self) -> LocalStore:
        return LocalStore(self._local.root / PULLED)

    def _take(self, fetched: Fetched) -> Entry:
        key = fetched.manifest.key
        with self._fetch.remembering(key, fetched.content):
            self._try_out(fetched)
        self.refusals.forget(key)
        origin = self._origin(fetched)
        self._handed[key] = fetched.content
        try:
            entry = self._local.put(fetched.manifest, fetched.package, origin)
        except StoreError as error:
            self._progress(f"not kept for the next start: {error}")
            return Entry(key, fetched.manifest, fetched.package, f"{origin}, not kept here: {error}")
        if entry.manifest.package != fetched.manifest.package:
            del self._handed[key]  # another process of this machine was first, with a build of its own
            return entry
        return replace(entry, source=str(origin))

    def _origin(self, fetched: Fetched) -> provenance.Origin:
        return provenance.Origin(self.repo, fetched.content.commit, fetched.manifest.package.sha256)

    def _try_out(self, fetched: Fetched) -> None:
        self._progress(f"trying out what {self.repo} has, in a process of its own")
        try:
            self._prove(fetched.package, fetched.manifest)
        except TrialUnfinished as error:
            raise HubError(str(error)) from error  # to be tried again
        except SmokeFailed as error:
            raise PackageRefused(str(error)) from error
        except CompileCacheError:
            raise
        except Exception as error:
            raise HubError(f"the trial run could not be made ({type(error).__name__}: {error})"[:300]) from error
