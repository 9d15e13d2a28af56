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

from compile_cache.errors import CompileCacheError, RunFailed, out_of_memory

from ..binary import build
from ..pipeline import Block, GenerationError, Request
from ..runner import Held
from .platform import FAILED, MEMORY
from .recording import Served
from .serving import Serving


def work(serving: Serving, request: Request, held: Held) -> Iterator[Block | Served]:
    """The request's blocks, then Served. held: what the parent holds now.

    A binary that fails is given up: before its first block the request runs eagerly instead, later it ends there.
    """
    began, times, problem = time.perf_counter(), [], None
    pipeline = serving.holding(held)
    while True:
        try:
            for block in pipeline.stream(request):
                times.append(time.perf_counter() - began)
                yield block
        except GenerationError as error:
            problem = str(error)
        except RunFailed as error:
            if out_of_memory(str(error)):
                problem = MEMORY
            else:
                pipeline = serving.give_up(str(error))
                if not times:
                    continue
                problem = FAILED
        break
    serving.tell_memory("the process that makes videos")
    first, last = (times[0], times[-1]) if times else (0.0, 0.0)
    yield replace(serving.served(pipeline), problem=problem, seconds=last, first_seconds=first)


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
