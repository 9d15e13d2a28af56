"""One repository on the Hub, read at one commit: which entries it has, their manifests and packages.

Hands out bytes that the Hub says are there; what they are worth is for the caller to check. Knows the layout
<key>/manifest.json + <key>/package.pt2 and nothing of stores.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import hf_hub_url
from huggingface_hub.utils import HFValidationError, validate_repo_id

from compile_cache.deadline import Deadline
from compile_cache.errors import HubError, PackageRefused, StoreError
from compile_cache.hub_http import Answer, Missing, NotVisible, check_token, endpoint_or_default, get
from compile_cache.manifest import HEX64, LARGEST_MANIFEST, PACKAGE
from compile_cache.provenance import COMMIT, REPO
from compile_cache.store import MANIFEST

LARGEST_LISTING = 32 * 2**20  # bytes of a page
MOST_PAGES = 100


def check_repo(repo: str) -> None:
    """Raises HubError for what cannot be a repository's name."""
    try:
        validate_repo_id(repo)
        sound = REPO.fullmatch(repo) is not None
    except HFValidationError:
        sound = False
    if not sound:
        raise HubError(f"{repo[:100]!r} is not the name of a Hub repository; it must have the form owner/name")


class HubRepo:
    """Reads one model repository. A token, when there is one, is sent only where the Hub shows nothing without."""

    def __init__(self, repo: str, token: str | None = None, endpoint: str | None = None) -> None:
        """repo: "owner/name". endpoint: the Hub's address; None for huggingface_hub's own (HF_ENDPOINT)."""
        self.repo = repo
        self.endpoint = endpoint_or_default(endpoint)
        self._given = token
        self._token: str | None = None

    def tip(self, deadline: Deadline) -> str:
        """The commit that main is at, 40 hex digits. Raises HubError, TimeoutError."""
        check_repo(self.repo)
        url = f"{self.endpoint}/api/models/{self.repo}/revision/main?expand=sha"

        def commit(answer: Answer) -> str:
            try:
                found = json.loads(answer.read(LARGEST_LISTING))["sha"]
            except (ValueError, TypeError, KeyError, RecursionError):
                found = None
            if not isinstance(found, str) or not COMMIT.fullmatch(found):
                raise HubError("the Hub did not say at which commit main is")
            return found

        try:
            return get(url, deadline, commit, self._token)
        except NotVisible:
            if self._given is None or self._token is not None:
                raise
        check_token(self._given)
        self._token = self._given  # private, perhaps
        return get(url, deadline, commit, self._token)

    def manifest(self, key: str, commit: str, deadline: Deadline) -> bytes | None:
        """The bytes of a manifest, None when there is none. Raises PackageRefused (too big), HubError, TimeoutError."""

        def read(answer: Answer) -> bytes:
            if (answer.size or 0) > LARGEST_MANIFEST:
                raise PackageRefused(f"the manifest has {answer.size} bytes, more than {LARGEST_MANIFEST}")
            return answer.read(LARGEST_MANIFEST)

        try:
            return get(self._url(key, MANIFEST, commit), deadline, read, self._token)
        except Missing:
            return None

    def package(
        self,
        key: str,
        commit: str,
        deadline: Deadline,
        accept: Callable[[int | None, str], int],
        path: Path | None = None,
    ) -> tuple[int, str]:
        """Downloads a package into the new file `path`; (size, sha256) of what arrived. Without a path: (0, "").

        accept(size, content): called with what the Hub says before a byte of the package is read; returns how many
        bytes may arrive, or raises. What comes beyond that is counted once and not written. Raises PackageRefused
        when the Hub has none, StoreError when it cannot be written, HubError, TimeoutError.
        """

        def read(answer: Answer) -> tuple[int, str]:
            expected = accept(answer.size, answer.content)
            if path is None:
                return 0, ""
            deadline.expect(expected)
            digest, size = hashlib.sha256(), 0
            with _File(path) as out:
                for chunk in answer.chunks():
                    size += len(chunk)
                    if size > expected:
                        break
                    digest.update(chunk)
                    deadline.arrived(len(chunk))
                    out.write(chunk)
            return size, digest.hexdigest()

        try:
            return get(self._url(key, PACKAGE, commit), deadline, read, self._token)
        except Missing:
            accept(None, "")
            raise PackageRefused("the repository has the manifest but not the package") from None

    def keys(self, commit: str, deadline: Deadline) -> list[str]:
        """The keys of which the repository has a folder. Raises HubError, TimeoutError."""
        url: str | None = f"{self.endpoint}/api/models/{self.repo}/tree/{commit}"
        found: list[str] = []
        for _ in range(MOST_PAGES):
            page, url = get(url, deadline, lambda answer: (answer.read(LARGEST_LISTING), answer.next_page), self._token)
            try:
                found += [item["path"] for item in json.loads(page) if item["type"] == "directory"]
            except (ValueError, TypeError, KeyError, RecursionError):
                raise HubError("the Hub's list of files is not readable") from None
            if url is None or not url.startswith(f"{self.endpoint}/"):  # the token goes nowhere else
                break
        return sorted(name for name in found if isinstance(name, str) and HEX64.fullmatch(name))

    def _url(self, key: str, name: str, commit: str) -> str:
        if not HEX64.fullmatch(key):
            raise HubError(f"{key[:80]!r} is not a key (64 hexadecimal digits)")
        return hf_hub_url(self.repo, f"{key}/{name}", revision=commit, endpoint=self.endpoint)


class _File:
    """A file being written, begun anew if it is there; its errors say where there is no room."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> _File:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        self._handle = self._do(lambda: os.open(self._path, flags, 0o600))
        return self

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._do(lambda rest=view: os.write(self._handle, rest)) :]

    def __exit__(self, *_: object) -> None:
        self._do(lambda: os.close(self._handle))

    def _do(self, call: Callable[[], int]) -> int:
        try:
            return call()
        except OSError as error:
            raise StoreError(f"cannot keep the download in {self._path.parent}: {error.strerror}") from error
