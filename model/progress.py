"""Bytes that are downloaded, read or written, told as they come: to nobody, or to people. Knows not what they are."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]  # (bytes done, bytes in all)
MANY = 10**8  # bytes: what is worth telling of


def quiet(done: int, total: int) -> None:
    """Progress that nobody wants."""


def tenths(what: str, say: Callable[[str], None]) -> Progress:
    """A line for every tenth, where there are many; told anew when the total is another one."""
    told = (0, 0)

    def progress(done: int, total: int) -> None:
        nonlocal told
        now = (total, 10 * done // max(total, 1))
        if total >= MANY and now[1] > 0 and now != told:
            say(f"{10 * now[1]} % of {total / 1e9:.2f} GB {what}")
        told = now

    return progress
