"""One entry into a repository on the Hub: manifest and package in one commit, on top of what was looked at.

Whoever was first keeps the key. Knows the writing half of huggingface_hub; what it uploads has been checked before.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import httpx2
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from compile_cache.deadline import Deadline
from compile_cache.errors import HubError, ManifestError, PackageRefused
from compile_cache.hub_http import OFFLINE, Changed, NotVisible, broken, check_token, refusal
from compile_cache.hub_repo import HubRepo
from compile_cache.manifest import HEX64, PACKAGE, Manifest, parse
from compile_cache.store import MANIFEST, Entry

TRIES = 20  # when others keep committing in between


@dataclass(frozen=True)
class Published:
    """What became of it, at which commit (40 hex digits), and the same in words.

    published: it is there now. replaced: likewise, in place of one that nobody could have read. identical: this very
    package was there already. theirs: another build of the same key was there already and stays.
    """

    outcome: Literal["published", "replaced", "identical", "theirs"]
    commit: str
    text: str


def publish(entry: Entry, hub: HubRepo, token: str, deadline: Deadline) -> Published:
    """Makes `entry` one of the repository's; or finds that its key is taken. Raises HubError, TimeoutError."""
    check_token(token)
    api = HfApi(endpoint=hub.endpoint, token=token)
    for attempt in range(TRIES):
        tip = hub.tip(deadline)
        there = _look(hub, entry.key, tip, deadline)
        if isinstance(there, Manifest):
            if there.package == entry.manifest.package:
                return Published("identical", tip, f"{hub.repo} has this package already, nothing was committed")
            who = f" (by {there.publisher}, {there.built_at})" if there.publisher else f" ({there.built_at})"
            text = f"{hub.repo} has another build of this key already{who}; it stays, this one is not published"
            return Published("theirs", tip, text)
        try:
            commit, made = _commit(api, hub.repo, entry, tip)
        except Changed:
            deadline.check()
            time.sleep(random.uniform(0.05, 0.3) * min(attempt + 1, 5))  # the others are as many as we are
            continue
        if not made:
            if commit == tip:  # nor would the next look show it
                why = there or "the manifest is not there"
                raise HubError(f"{hub.repo} has this package already, but does not give it out: {why}")
            continue  # the same package came in between
        if there is None:
            return Published("published", commit, f"published to {hub.repo} at {commit[:7]}")
        text = f"published to {hub.repo} at {commit[:7]}, in place of an entry that nobody could use: {there}"
        return Published("replaced", commit, text)
    raise HubError(f"in {TRIES} tries, {hub.repo} was changed each time in between")


def _look(hub: HubRepo, key: str, commit: str, deadline: Deadline) -> Manifest | str | None:
    """The manifest of a sound entry; why there is none that anybody could use; None when there is nothing."""
    try:
        data = hub.manifest(key, commit, deadline)
        if data is None:
            return None
        manifest = parse(data)
        if manifest.key != key:
            return "its manifest is that of another key"
        record = manifest.package

        def fits(size: int | None, content: str) -> int:
            if size not in (None, record.size) or (HEX64.fullmatch(content) and content != record.sha256):
                raise PackageRefused("its package is not the one of its manifest")
            return 0

        hub.package(key, commit, deadline, fits)
    except (ManifestError, PackageRefused) as error:
        return str(error)
    return manifest


def _commit(api: HfApi, repo: str, entry: Entry, parent: str) -> tuple[str, bool]:
    """The commit that was made on `parent`, True; or the one that main is at, which has these very files, False.

    Raises Changed when main is not at `parent` and lacks some of them, another HubError.
    """
    environment = entry.manifest.fields["environment"]
    operations = [
        CommitOperationAdd(f"{entry.key}/{MANIFEST}", entry.manifest.to_json()),
        CommitOperationAdd(f"{entry.key}/{PACKAGE}", entry.package),
    ]
    message = f"Add {entry.key[:16]} for {environment.get('gpu') or environment.get('device')}"
    message += f", torch {environment.get('torch')}"
    with _in_words(repo):
        info = api.create_commit(repo, operations, commit_message=message, parent_commit=parent, revision="main")
    # Where no file has changed, the client sends no commit, and returns main's as if it were that; only this tells.
    return info.oid, all(operation._is_committed for operation in operations)


@contextmanager
def _in_words(repo: str) -> Iterator[None]:
    """Turns what create_commit raises into one line each."""
    try:
        yield
    except OfflineModeIsEnabled:
        raise HubError(OFFLINE) from None
    except (HfHubHTTPError, httpx2.HTTPError, OSError, RuntimeError) as error:
        # An upload's error comes as the cause of a RuntimeError.
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        problem = _problem(cause)
        if isinstance(problem, Changed):
            raise problem from None
        hint = f"; the token must be allowed to write to {repo}, which must exist" * isinstance(problem, NotVisible)
        raise HubError(f"{problem}{hint}") from None


def _problem(error: BaseException) -> HubError:
    if isinstance(error, HfHubHTTPError):
        return refusal(error.response, True)
    if isinstance(error, httpx2.HTTPError):
        return broken(error)
    lines = str(error).strip().splitlines() or [""]
    return HubError(f"{type(error).__name__}: {lines[0][:200]}")
