"""Which pipeline serves requests now: a cached binary if there is one, else eager until one is fetched or built.

Both happen beside the requests or before them: first the Hub repository that the owner named is asked, then a build
runs, in a process of its own which does not outlive this one, or as the caller says, and is offered to that
repository. New requests get the new binary, running ones end on what they began with. Nothing here knows of pages or
visitors.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compile_cache.errors import CompileCacheError
from compile_cache.hub import HubStore
from compile_cache.store import LocalStore

from .binary import open_runner
from .leash import leashed
from .pipeline import Pipeline
from .recording import MODE_NAMES
from .sources import hub_source, local_source

log = logging.getLogger(__name__)
# How to build: a command line that prints one line of JSON in the end; or what builds and returns why it failed.
Build = Sequence[str] | Callable[[], str | None]
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
    building: str | None  # what is being done right now to get one, None when nothing is
    failure: str | None  # why the last build gave no binary
    published: str | None  # what became of offering a build to the Hub repository
    build: Mapping[str, Any]  # of the binary: when, by whom, its sha256, the key's fields

    @property
    def label(self) -> str:
        return MODE_NAMES.get(self.mode, self.mode) + (f", {_verb(self.building)} …" if self.building else "")

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
            "Built": self.build and built_words(self.build),
            "Checked": self.build and f"sha256 {self.build['sha256']}, archive members, {_trial(self.build)}",
            "Hub": self.published and without_folders(self.published),
        }
        return {name: value for name, value in rows.items() if value}

    def key_fields(self) -> dict[str, str]:
        """The fields of the binary's key, in words: dotted name -> value; entry points by their sizes."""
        rows: dict[str, str] = {}
        for name, value in self.build.get("fields", {}).items():
            if name == "entry_points":
                for entry in value:
                    counts = f"{len(entry['inputs'])} inputs, {len(entry['constants'])} weights and tables"
                    rows[f"entry point {entry['name']}"] = counts
            elif isinstance(value, Mapping):
                rows |= {f"{name}.{inner}": _short(item) for inner, item in value.items()}
            else:
                rows[name] = _short(value)
        return rows

    def as_dict(self) -> dict[str, Any]:
        """For programs, JSON-able; nothing of where files lie here."""
        words = {name: value and without_folders(value) for name, value in (
            ("reason", self.reason), ("building", self.building), ("failure", self.failure),
            ("published", self.published),
        )}  # fmt: skip
        return {**asdict(self), **words}


class Serving:
    """Holds the current pipeline of one model folder. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()  # the build runs in another working directory
        self._building: str | None = None
        self._failure: str | None = None
        self._passed_over: str | None = None  # what the Hub repository had to say
        self._published: str | None = None
        self.pipeline = self._open()

    def prepare_in_background(self, build: Build | None = None, when: threading.Event | None = None) -> None:
        """Gets a binary if none is loaded: from the Hub repository, else by a build. Returns at once.

        build: by default the command line of `python -m model compile`.
        when: it is announced now and begins when this is set.
        """
        if self._lacks():
            threading.Thread(target=self._prepare, args=(build, when), name="prepare", daemon=True).start()

    def prepare(self, build: Build) -> None:
        """The same in this thread: returns when a binary serves, or when it is known why none does."""
        if self._lacks():
            self._prepare(build, None)

    def holding(self, key: str | None) -> Pipeline:
        """The pipeline of the binary `key`; opened first where this process was forked before that was there."""
        if key is not None and self.pipeline.runner.origin.key != key:
            self.pipeline = self._open()
        return self.pipeline

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
            reason=None if aot else "; ".join(filter(None, (origin.reason, self._passed_over))),
            building=building,
            failure=None if aot else self._failure,
            published=self._published,
            build=origin.build,
        )

    def _lacks(self) -> bool:
        runner = self.pipeline.runner
        if runner.mode == "aot":
            return False
        log.info("serving %s until a binary is built: %s", runner.mode, runner.origin.reason)
        self._building = "starting"
        return True

    def _open(self) -> Pipeline:
        return Pipeline(self.folder, open_runner(self.folder, mode="auto", sources=[local_source()]))

    def _prepare(self, build: Build | None, when: threading.Event | None) -> None:
        if when is not None:
            when.wait()
        try:
            hub = hub_source(self.folder, progress=self._say)
            if hub is None or not self._fetch(hub):
                self._build(build or [sys.executable, "-m", "model", "compile", "--model", str(self.folder), "--json"])
                if hub is not None and self._failure is None:
                    self._publish(hub)
        except Exception as error:
            log.exception("no binary could be prepared")
            self._failure = f"it could not be prepared ({type(error).__name__})"
        finally:
            self._building = None

    def _say(self, text: str) -> None:
        self._building = text[:200]

    def _fetch(self, hub: HubStore) -> bool:
        """Whether the repository has given a binary that serves now."""
        self._say(f"asking {hub.name}")
        try:
            runner = open_runner(self.folder, mode="aot", sources=[hub])
        except CompileCacheError as error:
            self._passed_over = str(error)
            log.info("%s", error)
            return False
        self.pipeline = Pipeline(self.folder, runner)
        log.info("serving the binary of %s", runner.origin.source)
        return True

    def _publish(self, hub: HubStore) -> None:
        if not hub.can_publish:
            self._published = "the new binary is not published: no write token (HF_TOKEN) is set"
        else:
            self._say(f"publishing to {hub.repo}")
            try:
                entry = LocalStore().find(self.pipeline.runner.origin.key)
                self._published = hub.publish(entry).text if entry else "not published: it left the store meanwhile"
            except CompileCacheError as error:
                self._published = str(error)
        log.info("%s", self._published)

    def _build(self, build: Build) -> None:
        begin = time.monotonic()
        self._say("starting")
        try:
            self._failure = build() if callable(build) else self._run(build)
            if self._failure is None:
                self.pipeline = self._open()  # a single assignment: requests see the old one or the new one
                if self.pipeline.runner.mode != "aot":
                    self._failure = "the new binary could not be used"
        except Exception as error:
            log.exception("the build could not be run")
            self._failure = f"the build could not be run ({type(error).__name__})"
        seconds = time.monotonic() - begin
        log.info("build: %s after %.0f s, serving %s", self._failure or "done", seconds, self.pipeline.runner.mode)

    def _run(self, command: Sequence[str]) -> str | None:
        """Runs the build in a process of its own; why it failed, None if it did not."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
        process = subprocess.Popen(leashed(command), cwd=_ROOT, **pipes)
        said: deque[str] = deque(maxlen=1)
        errors = threading.Thread(target=self._follow, args=(process, said), daemon=True)
        errors.start()
        answer = process.stdout.read()  # one line of JSON at the end
        errors.join()
        return _failure(process.wait(), answer, "".join(said))

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


def built_words(build: Mapping[str, Any]) -> str:
    """When, in what time, by whom and with what a binary was built."""
    by = f" by {build['publisher']}" if build.get("publisher") else ""
    return f"{build['built_at']}{by} in {build['build_seconds']:.0f} s with {build['compiler']}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]} …"


def _trial(build: Mapping[str, Any]) -> str:
    return "trial run" if build.get("reference") else "no trial run"


def _verb(doing: str) -> str:
    """Two words for a badge."""
    return next(
        (verb for verb in ("asking", "downloading", "trying", "publishing") if doing.startswith(verb)), "compiling"
    )


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
