"""Runs a command that must not outlive whoever asked for it: python -m model.service.leash PARENT_PID COMMAND...

The command gets a process group of its own, at low priority. When the parent is gone (also after a SIGKILL) or
this process is told to stop, the whole group is killed: a compiler started by the command goes with it. The
exit status is the command's. This file knows nothing of models, and imports nothing beyond the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

_LOOK_EVERY = 0.5  # seconds between two looks at whether the parent is still there


def leashed(command: Sequence[str]) -> list[str]:
    """The command line that runs `command` only as long as the calling process lives."""
    return [sys.executable, "-m", "model.service.leash", str(os.getpid()), *command]


def main(parent: int, command: Sequence[str]) -> int:
    """Runs the command to its end, or until the parent is gone; returns its exit status (128 + signal number)."""
    os.nice(10)  # whoever the parent serves comes first
    child = subprocess.Popen(command, process_group=0)

    def stop(number: int, _frame: object) -> None:
        _kill_group(child.pid)
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    while True:
        try:
            status = child.wait(timeout=_LOOK_EVERY)
            return status if status >= 0 else 128 - status
        except subprocess.TimeoutExpired:
            if os.getppid() != parent:
                _kill_group(child.pid)
                return 128 + signal.SIGHUP


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
