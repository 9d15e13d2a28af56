"""What takes a function's place in a process that is to die of SIGKILL in it, or right after it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(function: Callable[..., Any], times: int = 1) -> Callable[..., Any]:
    """The function, and then death, when it has been called so many times."""
    calls: list[int] = []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        calls.append(1)
        if len(calls) == times:
            die()
        return result

    return wrapped


def half_a_file(source: Any, target: Any, size: int) -> None:
    target.write(source.read()[:100])
    target.flush()
    die()
