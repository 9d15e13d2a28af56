"""What runs in a process that was forked from the one that serves, and what it sends back: small values only.

Such a process keeps what its parent held when it was forked. Errors would cross the border as a class name at best,
so what visitors should read of them is sent as a value. Knows nothing of who forks, nor of visitors.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from compile_cache.errors import CompileCacheError

from .binary import build
from .pipeline import Block, GenerationError, Request
from .recording import Served
from .serving import Serving


def work(serving: Serving, request: Request, key: str | None) -> Iterator[Block | Served]:
    """The request's blocks, then Served. key: of the binary that the parent holds now, None if it has none."""
    began = time.perf_counter()
    first = last = problem = None
    pipeline = serving.holding(key)
    try:
        for block in pipeline.stream(request):
            last = time.perf_counter() - began
            first = first or last
            yield block
    except GenerationError as error:
        problem = str(error)
    serving.tell_memory("the process that makes videos")
    yield replace(serving.served(pipeline), problem=problem, seconds=last or 0.0, first_seconds=first or 0.0)


def built(serving: Serving) -> dict[str, Any]:
    """Compiles the graph of the model into the store, which the parent shares. Returns the process, the
    binary's key, size and path, and the seconds it took; or the process and the error."""
    began = time.perf_counter()
    try:
        entry = build(serving.parts, environment=serving.place())
    except CompileCacheError as error:
        return {"process": os.getpid(), "error": str(error)}
    return {
        "process": os.getpid(),
        "key": entry.key,
        "bytes": entry.manifest.package.size,
        "package": str(entry.package),
        "seconds": round(time.perf_counter() - began, 1),
    }
