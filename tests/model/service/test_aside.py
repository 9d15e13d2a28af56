"""A source that is read in a thread of its own is the same source, until who waits for it gives up."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Generator
from contextvars import ContextVar

import pytest

from model.service.aside import read_aside

PATIENCE = 60
visitor: ContextVar[str] = ContextVar("visitor", default="nobody")


class Source:
    """Gives 0, 1, ...; before `held` it stands still until `go` is set, and then may fail."""

    def __init__(self, held: int | None = None, error: Exception | None = None, length: int = 3) -> None:
        self.held, self.error, self.length = held, error, length
        self.given: list[int] = []
        self.go, self.closed = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []

    def __call__(self) -> Generator[int, None, None]:
        self.threads.append(threading.current_thread())
        try:
            for number in range(self.length):
                if number == self.held:
                    assert self.go.wait(PATIENCE)
                    if self.error:
                        raise self.error
                self.given.append(number)
                yield number
        finally:
            self.threads.append(threading.current_thread())
            self.closed.set()


def never() -> bool:
    return False


def test_all_parts_come_one_by_one_from_another_thread() -> None:
    source = Source()
    parts = read_aside(source(), never)
    for number in range(3):
        assert next(parts) == number
        assert source.given == list(range(number + 1)), "nothing is asked for in advance"
    assert list(parts) == []
    assert source.closed.wait(PATIENCE)
    assert len(set(source.threads)) == 1
    assert threading.current_thread() not in source.threads


def test_errors_and_context_come_through() -> None:
    def source() -> Generator[str, None, None]:
        yield visitor.get()
        raise ZeroDivisionError("planned")

    token = visitor.set("ada")
    parts = read_aside(source(), never)
    assert next(parts) == "ada"
    visitor.reset(token)
    with pytest.raises(ZeroDivisionError, match="planned"):
        next(parts)


@pytest.mark.parametrize("error", [None, RuntimeError("too late")], ids=["gives", "fails"])
def test_who_gives_up_does_not_wait(error: Exception | None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    source = Source(held=1, error=error)
    asked = iter([False, True])
    assert list(read_aside(source(), lambda: next(asked), look_every=0.01)) == [0]
    assert not source.closed.is_set()
    source.go.set()
    assert source.closed.wait(PATIENCE)
    source.threads[0].join(PATIENCE)
    assert source.given == ([0] if error else [0, 1])
    assert len(set(source.threads)) == 1
    assert ("too late" in caplog.text) == bool(error)


def leave(parts: Generator[int, None, None]) -> None:
    parts.close()


def forget(parts: Generator[int, None, None]) -> None:
    """Makes it garbage that only a collection in another thread finds."""
    ring: list[object] = [parts]
    ring.append(ring)


@pytest.mark.parametrize("end", [leave, forget])
def test_closing_in_between_closes_the_source_without_another_part(end: Callable[..., None]) -> None:
    source = Source()
    parts = read_aside(source(), never)
    assert next(parts) == 0
    end(parts)
    del parts
    collecting = threading.Thread(target=gc.collect)
    collecting.start()
    collecting.join()
    assert source.closed.wait(PATIENCE)
    assert source.given == [0]
    assert len(set(source.threads)) == 1
