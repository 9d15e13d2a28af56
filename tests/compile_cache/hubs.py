"""What the tests around a Hub repository share: small entries, machines with a cache of their own, short limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compile_cache.deadline import Limits
from compile_cache.errors import CompileCacheError
from compile_cache.hub import HubStore
from compile_cache.manifest import PACKAGE, Manifest
from compile_cache.sources import open_first
from compile_cache.store import MANIFEST, Entry, LocalStore
from tests.compile_cache.packages import manifest_for, plain_members, write_zip
from tests.fixtures.fake_hub import FakeHub

SLACK = 3.0  # seconds, for a busy machine
REPO = "me/cache"
TOKEN = "hf_secret"
QUICK = Limits(ask=2.0, download=6.0, stall=1.5)  # seconds, where a test waits for one of them to pass
PACKAGE_GET = r"GET /blob/"  # where the bytes of a package come from


@dataclass
class Trial:
    """Stands for the trial run: notes what it was given, then does what it is told."""

    outcome: Callable[[], object] | None = None
    seen: list[bytes] = field(default_factory=list)

    def __call__(self, package: Path, manifest: Manifest) -> None:
        assert package.parent.stat().st_mode & 0o077 == 0
        self.seen.append(package.read_bytes())
        if self.outcome is not None:
            self.outcome()


@dataclass
class Machine:
    """A machine: its cache, its view of the repository, its trial runs, and what it told people."""

    local: LocalStore
    hub: HubStore
    trial: Trial
    told: list[str]


def machine(folder: Path, hub: FakeHub | str, *, repo: str = REPO, **settings: Any) -> Machine:
    """One whose cache is `folder`. hub: a FakeHub or an address."""
    trial, told = settings.pop("prove", Trial()), []
    settings = {"endpoint": hub if isinstance(hub, str) else hub.url, **settings}
    local = LocalStore(folder)
    return Machine(local, HubStore(repo, local, trial, progress=told.append, **settings), trial, told)


@dataclass(frozen=True)
class Offer:
    """An entry as bytes."""

    manifest: Manifest
    package: bytes

    @property
    def key(self) -> str:
        return self.manifest.key

    @property
    def manifest_path(self) -> str:
        return f"{self.key}/{MANIFEST}"

    @property
    def package_path(self) -> str:
        return f"{self.key}/{PACKAGE}"

    def files(self) -> dict[str, bytes | None]:
        return {self.manifest_path: self.manifest.to_json(), self.package_path: self.package}

    def put(self, local: LocalStore, folder: Path) -> Entry:
        """Into a local store, as if it had been built there."""
        path = folder / f"{self.manifest.package.sha256}.pt2"
        path.write_bytes(self.package)
        return local.put(self.manifest, path)


def offer(folder: Path, library: bytes = b"not a library", sources: str = "1") -> Offer:
    """A sound small entry; the key varies with `sources` (a hex digit), the package with `library`."""
    path = write_zip(folder / "offer.pt2", plain_members(library))
    return Offer(manifest_for(path, sources=sources * 64), path.read_bytes())


def line_of(work: Callable[[], object]) -> str:
    """The one line of the error that `work` raises, which must be one of ours; "" when it raises none."""
    try:
        work()
    except CompileCacheError as error:
        text = str(error)
    else:
        return ""
    assert text
    assert "\n" not in text, text
    assert len(text) < 400, text
    assert TOKEN not in text
    return text


def settle() -> None:
    """Waits for the threads that were left behind.

    To be called before a fork: a child takes along what is locked at that moment, such as the HTTP client.
    """
    for thread in threading.enumerate():
        if thread.name == "bounded":
            thread.join(60)
            assert not thread.is_alive()


class Next:
    """The source after the repository."""

    name = "next"

    def __init__(self) -> None:
        self.asked = 0

    def find(self, key: str):
        self.asked += 1

    def reject(self, key: str, reason: str) -> None: ...


def passed_over(one: Machine, key: str, budget: float) -> str:
    """Asks the machine's sources; the line about the repository, which must come within the budget and be no entry."""
    after, began = Next(), time.monotonic()
    binary, answer = open_first(key, [one.local, one.hub, after], {})
    took = time.monotonic() - began
    assert binary is None
    assert after.asked == 1
    assert took < budget + SLACK
    assert [a.outcome for a in answer.tried][::2] == ["miss", "miss"]
    assert one.trial.seen == []
    line = answer.tried[1].reason
    assert "\n" not in line
    return line
