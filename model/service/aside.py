"""Reads a source in a thread of its own, so that who waits for its next part can give up without it.

Knows nothing of what the parts are, nor of who waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import closing
from contextvars import copy_context
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)
Part = TypeVar("Part")


def read_aside(
    source: Generator[Part, None, None], given_up: Callable[[], bool], look_every: float = 0.1
) -> Generator[Part, None, None]:
    """The parts of `source` and its error, if it raises one; each part is asked for when it is wanted, not before.

    The source runs in a thread of its own, with this caller's context variables. Where it is abandoned, which does not
    take long, it is closed in that thread as soon as it has given what it was asked for last; an error that comes
    instead is logged and lost.

    Args:
        source: a generator that was not started yet.
        given_up: asked while no part comes; True ends the parts without waiting for the source.
        look_every: seconds between two such questions.
    """
    reader = _Reader(source)
    Thread(target=copy_context().run, args=(reader.read,), name="read aside", daemon=True).start()
    try:
        while True:
            reader.wanted.put(True)
            while True:
                try:
                    kind, value = reader.given.get(timeout=look_every)
                    break
                except Empty:
                    if given_up():
                        return
            if kind == "error":
                raise value
            if kind == "end":
                return
            yield value
    finally:
        reader.abandoned = True
        reader.wanted.put(False)  # the only thing that may be needed in a garbage collector: it takes no lock


class _Reader(Generic[Part]):
    """What the two threads share."""

    def __init__(self, source: Generator[Part, None, None]) -> None:
        self.source = source
        self.wanted: SimpleQueue[bool] = SimpleQueue()  # True: one more part; False: no more
        self.given: SimpleQueue[tuple[str, Any]] = SimpleQueue()  # "part", "error" or "end", and what it is
        self.abandoned = False

    def read(self) -> None:
        try:
            with closing(self.source):
                while self.wanted.get():
                    self.given.put(("part", next(self.source)))
        except StopIteration:
            self.given.put(("end", None))
        except BaseException as error:
            if self.abandoned:
                log.info("nobody waited any more for what then failed: %s: %s", type(error).__name__, error)
            self.given.put(("error", error))
