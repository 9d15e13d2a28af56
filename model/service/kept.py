"""The last video of each visitor, held for a while: also one whose visitor broke it off.

A held file has no name any more, so that nothing is left on the disk however this process ends; and forked processes
do not hold it. Knows nothing of how visitors are told apart, nor of how they ask.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from .recording import Recording

log = logging.getLogger(__name__)
MOST = 100  # videos held at once
_AT_ONCE = 1 << 20  # bytes


class Video:
    """A finished file, which may be removed now, and its report."""

    def __init__(self, path: Path, report: dict[str, Any]) -> None:
        self.name, self.report = path.name, report
        self._file = os.open(path, os.O_RDONLY)
        self.let_go = weakref.finalize(self, os.close, self._file)

    def copy_into(self, folder: Path) -> Path:
        """Writes the file, under its old name, into a folder."""
        path, done = Path(folder) / self.name, 0
        with open(path, "wb") as copy:
            while data := os.pread(self._file, _AT_ONCE, done):
                done += copy.write(data)
        return path


class Making:
    """A visitor's video from its beginning: the folder it is made in, then what is kept of it."""

    def __init__(self, work: SimpleQueue[Callable[[], None]], given_up: Callable[[], bool]) -> None:
        self.given_up = given_up  # whether the visitor waits for it no more
        self.video: Video | None = None
        self.closed = False
        self.settled = threading.Event()  # closed, and all is done that was to be done later
        self.settled_at = 0.0
        self._work = work
        self._folder = tempfile.TemporaryDirectory(prefix="onegraph-video-")
        self.folder = Path(self._folder.name)

    def keep(self, recording: Recording) -> None:
        """Holds the recording's file, if it has one."""
        if recording.path:
            self.video = Video(recording.path, recording.report)

    def keep_later(self, finish: Callable[[], Recording]) -> None:
        """The same with what `finish` returns, which is called in another thread. Returns at once, and takes no lock,
        so that a garbage collector may call it."""
        self._work.put(lambda: self.keep(finish()))

    def close(self) -> None:
        """Nothing more comes; the folder goes as soon as it is not needed. Returns at once, as `keep_later` does."""
        self.closed = True
        self._work.put(self._settle)

    def _settle(self) -> None:
        self._folder.cleanup()
        self.settled_at = time.monotonic()
        self.settled.set()


class Kept:
    """Holds one video for each owner, for `seconds` from its end on, and `most` of them, of which the oldest go."""

    def __init__(self, seconds: float, most: int = MOST) -> None:
        self._seconds, self._most = seconds, most
        self._last: dict[str, Making] = {}  # by owner; the latest come last
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._let_go)

    def begin(self, owner: str | None, given_up: Callable[[], bool]) -> Making:
        """The owner's next video, which takes the place of the last one. It has to be closed.

        An owner without a name gets nothing back later.
        """
        making = Making(self._work, given_up)
        with self._lock:
            if owner:
                self._last.pop(owner, None)
                self._last[owner] = making
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kept videos", daemon=True)
                self._thread.start()
        return making

    def last(self, owner: str | None) -> Making | None:
        """The owner's last video, which may still be being made."""
        with self._lock:
            return self._last.get(owner) if owner else None

    def drop(self, owner: str | None) -> None:
        """The owner has gone."""
        with self._lock:
            self._last.pop(owner, None)

    def _run(self) -> None:
        while True:
            try:
                job = self._work.get(timeout=self._until_next())
            except Empty:
                job = None
            try:
                if job:
                    job()
            except Exception:
                log.exception("what was made of a video could not be kept")
            del job  # it may hold a video
            self._drop_old()

    def _settled(self) -> list[tuple[float, str]]:
        """When each video was settled, and whose it is; the oldest first. Under the lock."""
        return sorted((made.settled_at, owner) for owner, made in self._last.items() if made.settled.is_set())

    def _until_next(self) -> float | None:
        with self._lock:
            settled = self._settled()
        return max(0.0, settled[0][0] + self._seconds - time.monotonic()) if settled else None

    def _drop_old(self) -> None:
        limit = time.monotonic() - self._seconds
        with self._lock:
            settled = self._settled()
            for place, (since, owner) in enumerate(settled):
                if since <= limit or place < len(settled) - self._most:
                    del self._last[owner]

    def _let_go(self) -> None:
        """In a fork; the lock may be held there for ever."""
        for making in self._last.values():
            if making.video:
                making.video.let_go()
