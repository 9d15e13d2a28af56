"""A build in a process of its own, which does not outlive this one. Knows how such a process tells of itself, and
neither what it builds nor who wants it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from .leash import leashed

log = logging.getLogger(__name__)
STEP = 200  # characters of a step that are told
_ROOT = Path(__file__).parents[2]  # where `python -m model` is found


def run_build(command: Sequence[str], say: Callable[[str], None]) -> str | None:
    """Runs it to its end and hands each of its steps to `say`. Why it failed, None if it did not.

    command: prints steps on its error channel, and one line of JSON in the end. Raises OSError.
    """
    store = os.environ.get("ONEGRAPH_CACHE")  # a relative one is relative to this process' folder, not to the child's
    env = {**os.environ, **({"ONEGRAPH_CACHE": os.path.abspath(os.path.expanduser(store))} if store else {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
    process = subprocess.Popen(leashed(command), cwd=_ROOT, env=env, **pipes)
    said: deque[str] = deque(maxlen=1)
    errors = threading.Thread(target=_follow, args=(process, said, say), daemon=True)
    errors.start()
    answer = process.stdout.read()
    errors.join()
    return _failure(process.wait(), answer, "".join(said))


def step_in(line: str) -> str | None:
    """The step that a line of the build's error channel tells of; None if it tells none.

    Python's warnings come on the same channel: "/some/file.py:1: UserWarning: ..." and an indented line.
    """
    if line.startswith((" ", "\t", "/")) or "Warning" in line:
        return None
    return line.strip()[:STEP] or None


def _follow(process: subprocess.Popen[str], said: deque[str], say: Callable[[str], None]) -> None:
    """Tells of the steps, and keeps the last line in `said`."""
    for line in process.stderr:
        log.debug("build: %s", line.rstrip())
        if line.strip():
            said.append(line.strip())
        if step := step_in(line):
            say(step)


def _failure(status: int, answer: str, said: str) -> str | None:
    """Why the build failed, from its exit status, the JSON it printed last and its last words; None if it did not."""
    try:
        words = json.loads(answer.strip().splitlines()[-1]).get("error")
    except (IndexError, ValueError, AttributeError):
        words = None
    if status == 0 and not words:
        return None
    return str(words or f"the build ended with exit status {status}: {said}")[:500]
