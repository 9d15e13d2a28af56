"""What runs in a process that was forked from the one that serves, and what it sends back: small values only.

Such a process keeps what its parent held when it was forked. Errors would cross the border as a class name at best,
so what visitors should read of them is sent as a value. Knows nothing of who forks, nor of visitors.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

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
    origin = pipeline.runner.origin
    yield Served(pipeline.runner.mode, origin.key, origin.source, problem, last or 0.0, first or 0.0)
