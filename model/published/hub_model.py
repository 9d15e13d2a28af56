"""One model repository on the Hub at one commit: its files, and some of them downloaded.

Through huggingface_hub and its cache, so that what other programs downloaded is there, and so are the whole files of a
download that broke off. That client has no time limits of its own, so its work is done in a thread that is left behind
when nothing happens. Knows files, no parts.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from huggingface_hub import HfApi, constants, get_cached_repo_tree, get_token, snapshot_download
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    RevisionResolutionError,
)
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.hf_api import RepoFile
from tqdm import tqdm

from compile_cache.deadline import Deadline, Limits, bounded

from ..progress import Progress, quiet
from .disk import shortage
from .model_id import ModelError

LIMITS = Limits(ask=60.0, download=24 * 3600.0, stall=60.0)
T = TypeVar("T")


@dataclass(frozen=True)
class HubModel:
    """A repository and the commit that everything is read at."""

    repo: str
    commit: str
    files: dict[str, int]  # path -> bytes
    endpoint: str | None
    limits: Limits
    listed: bool = True  # by the Hub; else `files` are only those in this machine's cache

    def __str__(self) -> str:
        return f"{self.repo}@{self.commit}"

    @property
    def folder(self) -> Path:
        """Where its files lie when they are here."""
        return _folder(self.repo, self.commit)

    def absent(self, names: Sequence[str]) -> list[str]:
        """Those of the files that are not in the cache, or not with the size that the Hub says."""
        return [name for name in names if not _has(self.folder / name, self.files[name])]

    def to_fetch(self, names: Sequence[str]) -> int:
        """Bytes of those of the files that are absent."""
        return sum(self.files[name] for name in self.absent(names))

    def download(self, names: Sequence[str], progress: Progress = quiet) -> None:
        """Downloads those of the files that are absent. progress(bytes here, bytes expected). Raises ModelError."""
        absent = self.absent(names)
        if not absent:
            return
        total = self.to_fetch(absent)
        for name in absent:
            _discard(self.folder / name)
        deadline = Deadline(self.limits)
        deadline.expect(total)

        def work() -> str:
            return snapshot_download(self.repo, revision=self.commit, allow_patterns=absent, endpoint=self.endpoint,
                                     tqdm_class=_counter(deadline))  # fmt: skip

        _asked(self.repo, work, deadline, progress)
        left = self.absent(names)
        if left:
            raise ModelError(f"{self.repo} did not arrive whole: {left[0]} is missing or has another size than it must")
        progress(total, total)


def check_room(needed: int) -> None:
    """Raises ModelError where the disk of the client's cache has less than `needed` bytes free."""
    short = shortage(Path(constants.HF_HUB_CACHE), needed)
    if short is not None:
        raise ModelError(f"the disk is too small for the model: {short} (HF_HOME names another place)")


def open_model(repo: str, commit: str | None, endpoint: str | None = None, limits: Limits = LIMITS) -> HubModel:
    """The repository at that commit, or at the one that main is at now; the last known one when the Hub is away.

    Asks nothing where the commit is given and its list of files is in the cache. Raises ModelError.
    """

    def work() -> tuple[str, dict[str, int], bool]:
        api = HfApi(endpoint=endpoint)
        revision = api.resolve_revision(repo, revision=commit)
        try:
            files = get_cached_repo_tree(repo, revision=revision)
        except CachedRepoTreeNotFoundError:
            here = _in_cache(_folder(repo, revision.resolved))  # from a program that keeps no list
            try:
                if here:
                    api.repo_info(repo, revision=revision.resolved)  # which, other than a list, fails at once
                tree = api.list_repo_tree(repo, recursive=True, revision=revision.resolved)
                files = [file for file in tree if isinstance(file, RepoFile)]
            except (OfflineModeIsEnabled, httpx2.TransportError):
                if not here:
                    raise
                return revision.resolved, here, False
        return revision.resolved, {file.path: file.size for file in files}, True

    found, files, listed = _asked(repo, work, Deadline(limits))
    return HubModel(repo, found, files, endpoint, limits, listed)


def _folder(repo: str, commit: str) -> Path:
    """Where the client keeps a repository's files at a commit."""
    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model") / "snapshots" / commit


def _in_cache(folder: Path) -> dict[str, int]:
    """The whole files in a folder: path -> bytes."""
    found = [file for file in folder.rglob("*") if file.is_file()]
    return {file.relative_to(folder).as_posix(): file.stat().st_size for file in found}


def _asked(repo: str, work: Callable[[], T], deadline: Deadline, progress: Progress = quiet) -> T:
    try:
        return bounded(work, deadline, progress)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(_meaning(repo, error)) from None


def _meaning(repo: str, error: BaseException) -> str:
    """One sentence on why the Hub did not give what was asked for."""
    chain = list(_causes(error))

    def found(*kinds: type[BaseException]) -> BaseException | None:
        return next((item for item in chain if isinstance(item, kinds)), None)

    with_token = get_token() is not None
    if found(GatedRepoError):
        how = "the token's account must accept" if with_token else "set HF_TOKEN to a token whose account has accepted"
        return f"{repo} is gated: {how} its conditions on its page on the Hub"
    response = found(HfHubHTTPError)
    status = response.response.status_code if isinstance(response, HfHubHTTPError) else None
    if found(RepositoryNotFoundError) or status == 401:
        private = "the token is not valid or may not see it" if with_token else "it is private and HF_TOKEN is not set"
        return f"the Hub has no model {repo}, or {private}"
    if found(RevisionNotFoundError):
        return f"{repo} has no such commit"
    if any(isinstance(item, OSError) and item.errno == errno.ENOSPC for item in chain):
        return f"the disk is full; {repo} is not complete"
    if status is not None:
        return f"the Hub answered {status} for {repo}"
    if found(OfflineModeIsEnabled):
        return f"HF_HUB_OFFLINE is set, and {repo} is not complete in this machine's cache"
    if found(httpx2.ConnectError, httpx2.TimeoutException, RevisionResolutionError):
        return f"the Hub cannot be reached, and {repo} is not complete in this machine's cache"
    line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    if found(httpx2.TransportError, TimeoutError) or "Consistency check" in line:
        waits = "; perhaps another process is downloading it" if found(TimeoutError) else ""
        return f"the download of {repo} broke off ({line}){waits}; whole files are kept, so try again"
    if found(LocalEntryNotFoundError):
        return f"the Hub did not give what {repo} should have ({line})"
    return f"{repo} could not be fetched ({type(error).__name__}: {line})"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _counter(deadline: Deadline) -> type[tqdm]:
    """The client's progress bar, which shows nothing and tells the deadline of bytes.

    The client keeps one bar for bytes that arrived, one for bytes that are written, one for files.
    """
    lock, most = threading.Lock(), [0]

    class Counter(tqdm):
        def __init__(self, *args: Any, **settings: Any) -> None:
            self._bytes = settings.get("unit") == "B"
            self._here = 0
            super().__init__(*args, **settings | {"disable": True})

        def update(self, n: float | None = 1) -> None:
            if not self._bytes:
                return
            with lock:
                self._here += int(n or 0)
                if self._here > most[0]:
                    deadline.arrived(self._here - most[0])
                    most[0] = self._here

    return Counter


def _discard(file: Path) -> None:
    """Removes a file of the cache that was cut short, and what its link points to: the client would take it whole."""
    blob = file.resolve()
    file.unlink(missing_ok=True)
    if blob.parent.name == "blobs":
        blob.unlink(missing_ok=True)


def _has(file: Path, size: int) -> bool:
    try:
        return file.stat().st_size == size
    except OSError:
        return False
