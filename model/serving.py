"""Which pipeline serves requests now: a cached binary if there is one, else eager until a new binary is built.

The build runs in a process of its own, which does not outlive this one; when it is done, new requests get the
binary and running ones end on what they began with. Nothing here knows of pages or visitors.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from .binary import open_runner
from .leash import leashed
from .pipeline import Pipeline
from .recording import MODE_NAMES

log = logging.getLogger(__name__)
_ROOT = Path(__file__).parent.parent  # where `python -m model` is found
_FOLDERS = re.compile(r"(?<![\w./])/(?=[^/\s])(?:[^\s/'\"`,;:()]+/)*")  # of an absolute path; not in a URL, a/b or ../a


@dataclass(frozen=True)
class Status:
    """What serves requests at this moment, and why."""

    mode: str  # "aot", "jit" or "eager"
    source: str | None  # where the binary came from
    key: str | None
    size: int | None  # bytes of the binary
    load_seconds: float | None
    reason: str | None  # why no binary was found or could be used
    building: str | None  # what a build is doing right now, None when none runs
    failure: str | None  # why the last build gave no binary

    @property
    def label(self) -> str:
        return MODE_NAMES.get(self.mode, self.mode) + (", compiling …" if self.building else "")

    def facts(self) -> dict[str, str]:
        """The same in words, for visitors: name -> value, only what applies; nothing of where files lie here."""
        build = self.building or (self.failure and f"failed: {self.failure}")
        rows = {
            "Runs": "AoT binary of the whole graph" if self.mode == "aot" else f"PyTorch, {MODE_NAMES[self.mode]}",
            "Why": self.reason and without_folders(self.reason),
            "Build": build and without_folders(build),
            "Binary from": self.source,
            "Key": self.key,
            "Size": self.size and f"{self.size / 1e6:.2f} MB",
            "Loaded in": self.load_seconds and f"{1000 * self.load_seconds:.0f} ms",
        }
        return {name: value for name, value in rows.items() if value}


class Serving:
    """Holds the current pipeline of one model folder. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()  # the build runs in another working directory
        self._building: str | None = None
        self._failure: str | None = None
        self.pipeline = self._open()

    def build_in_background(self, command: list[str] | None = None, when: threading.Event | None = None) -> None:
        """Starts a build if no binary is loaded, and switches over when it is done. Returns at once.

        when: the build is announced now and begins when this is set.
        """
        runner = self.pipeline.runner
        if runner.mode == "aot":
            return
        log.info("serving %s until a binary is built: %s", runner.mode, runner.origin.reason)
        command = command or [sys.executable, "-m", "model", "compile", "--model", str(self.folder), "--json"]
        self._building = "starting"
        threading.Thread(target=self._build, args=(command, when), name="build", daemon=True).start()

    def status(self) -> Status:
        building = self._building  # read first: "eager, and nothing is built" must never be said in between
        runner = self.pipeline.runner
        origin = runner.origin
        aot = runner.mode == "aot"
        return Status(
            mode=runner.mode,
            source=origin.source,
            key=origin.key,
            size=origin.size,
            load_seconds=origin.seconds,
            reason=None if aot else origin.reason,
            building=building,
            failure=None if aot else self._failure,
        )

    def _open(self) -> Pipeline:
        return Pipeline(self.folder, open_runner(self.folder, mode="auto"))

    def _build(self, command: list[str], when: threading.Event | None) -> None:
        if when is not None:
            when.wait()
        begin = time.monotonic()
        try:
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
            process = subprocess.Popen(leashed(command), cwd=_ROOT, **pipes)
            said: deque[str] = deque(maxlen=1)
            errors = threading.Thread(target=self._follow, args=(process, said), daemon=True)
            errors.start()
            answer = process.stdout.read()  # one line of JSON at the end
            errors.join()
            self._failure = _failure(process.wait(), answer, "".join(said))
            if self._failure is None:
                self.pipeline = self._open()  # a single assignment: requests see the old one or the new one
                if self.pipeline.runner.mode != "aot":
                    self._failure = "the new binary could not be used"
        except Exception as error:
            log.exception("the build could not be run")
            self._failure = f"the build could not be run ({type(error).__name__})"
        finally:
            self._building = None
        seconds = time.monotonic() - begin
        log.info("build: %s after %.0f s, serving %s", self._failure or "done", seconds, self.pipeline.runner.mode)

    def _follow(self, process: subprocess.Popen[str], said: deque[str]) -> None:
        """Keeps the last step the build told of, for whoever asks what it is doing, and its last line in `said`."""
        for line in process.stderr:
            log.debug("build: %s", line.rstrip())
            if line.strip():
                said.append(line.strip())
            self._building = step_in(line) or self._building


def step_in(line: str) -> str | None:
    """The step that a line of the build's error channel tells of, at most 200 characters; None if it tells none.

    Python's warnings come on the same channel: "/some/file.py:1: UserWarning: ..." and an indented line.
    """
    if line.startswith((" ", "\t", "/")) or "Warning" in line:
        return None
    return line.strip()[:200] or None


def without_folders(text: str) -> str:
    """The text with "/some/folder/name" as "…/name": which file it was, but not where it lies on this machine."""
    return _FOLDERS.sub("…/", text)


def _failure(status: int, answer: str, said: str) -> str | None:
    """Why the build failed, from its exit status, the JSON it printed last and its last words; None if it did not."""
    try:
        words = json.loads(answer.strip().splitlines()[-1]).get("error")
    except (IndexError, ValueError, AttributeError):
        words = None
    if status == 0 and not words:
        return None
    return str(words or f"the build ended with exit status {status}: {said}")[:500]
