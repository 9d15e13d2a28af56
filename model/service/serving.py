"""Which pipeline serves requests now: a cached binary if there is one, else eager until one is fetched or built.

Both happen beside the requests or before them: first the Hub repository that the owner named is asked, then a build
runs, in a process of its own which does not outlive this one, or as the caller says, and is offered to that
repository. New requests get the new binary, running ones end on what they began with. Nothing here knows of pages or
visitors.

Where only forks of this process have the device, this one finds and verifies the binary, and its forks try it out
and open it. The weights are placed before any of that, once, for all that ever runs.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compile_cache.compiler import find_compiler
from compile_cache.errors import CompileCacheError, CompilerMissing
from compile_cache.hardware import place_here, unlike
from compile_cache.hub import HubStore
from compile_cache.key import key_of
from compile_cache.store import LocalStore

from ..binary import BinaryMissing, binary_fields, name_parts, open_parts, why
from ..parts import load_parts
from ..pipeline import Pipeline
from ..progress import Progress, quiet
from ..runner import Held, Named, Origin, Runner, eager_runner
from .building import STEP, run_build
from .memory import held
from .recording import Served
from .sources import Downloaded, Untried, hub_source, local_source
from .status import Status, without_folders

log = logging.getLogger(__name__)
# How to build: a command line that prints one line of JSON in the end; or what builds and returns why it failed.
Build = Sequence[str] | Callable[[], str | None]


class Serving:
    """Holds the current pipeline of one model folder. Thread-safe."""

    def __init__(self, folder: Path, device: str = "auto", *, lent: bool = False, progress: Progress = quiet) -> None:
        """device: a name of `device.DEVICES`. lent: whether a GPU is lent to forks of this process, for a request.
        progress(bytes read, bytes in all), of each part's weights.

        Raises ConfigError, naming the file, where the model cannot be used.
        """
        self.folder = folder.resolve()  # the build runs in another working directory
        self.parts = load_parts(self.folder, device=device, progress=progress)
        self._namer = os.getpid() if lent and self.parts.device.type != "cpu" else None  # opens nothing itself
        self._building: str | None = None
        self._failure: str | None = None
        self._published: str | None = None
        self._tried: list[str] = []  # and why it does not serve
        self._fields = binary_fields(self.parts)  # of the key
        self._place = self._fields["environment"]  # where requests run, as far as it is known
        self._places = [self._place]  # every one that was ever told of
        self._moved = False  # whether this process is not where the one that forked it believed
        self._asked: Held | None = None  # what the parent held at the last request
        self._refused: set[str] = set()  # binaries that forks could not use
        self._measured: list[tuple[int, str]] = []
        self._lock = threading.Lock()
        self._getting = threading.Lock()  # held while a binary is fetched or built
        self._number = 0
        self._hold(self._open())
        if self._names_only and self.pipeline.runner.mode == "eager":
            self.parts.modules()  # once, for all forks

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

    @property
    def held(self) -> Held:
        """What this process holds, for the one that is to run a request."""
        runner = self.pipeline.runner
        return Held(runner.origin.key, self._number, isinstance(runner, Named) and not runner.tried)

    def holding(self, held: Held) -> Pipeline:
        """The pipeline for a request, where the parent holds that, in the process that runs it.

        Looks for a binary again where the hardware is not what the parent was told, where this process was forked
        before the parent had one, and where the parent could not open it.
        """
        place, runner = self.place(), self.pipeline.runner
        if other := self._unlike(place):
            self._place, self._moved = place, True
            self.pipeline = self._open(after=other)
        elif isinstance(runner, Named) or (held.key not in (None, runner.origin.key) and held != self._asked):
            self.pipeline = self._open(untried=held.untried)
        self._asked = held
        return self.pipeline

    def give_up(self, reason: str) -> Pipeline:
        """The binary that this process opened cannot be run: from now on it runs eagerly."""
        log.warning("the binary is given up: %s", reason)
        self._tried.append(reason)
        self.pipeline = Pipeline(self.folder, eager_runner(self.parts, reason))
        return self.pipeline

    def place(self) -> Mapping[str, Any]:
        """The environment of keys in this process: what was declared, unless the device that is here is another one.
        A part of a GPU may bear a name of its own, and is none."""
        here = place_here(self.parts.device)
        return here if self._unlike(here) else self._place

    def move(self, place: Mapping[str, Any], build: Build | None = None) -> None:
        """Requests turned out to run in that environment: the binary for it is got beside them and held from then on.
        Once for each environment: if it has none, later requests do not begin anew."""
        with self._lock:
            if place in self._places:
                return
            self._places.append(place)
            self._building = "starting"
        threading.Thread(target=self._again, args=(build, place), name="move", daemon=True).start()

    def opened(self, held: Held, served: Served, build: Build) -> None:
        """How the binary that this process only named, and held at that time, fared in the fork that served a request:
        tried out and used, or not. Then one is built beside the requests, once."""
        with self._lock:
            runner = self.pipeline.runner
            if not isinstance(runner, Named) or held.key is None or held.number != self._number:
                return  # nothing is held any more of which this could tell
            if served.key == held.key:
                runner.tried = True
            if served.mode == "aot" or served.sought != held.key:
                return
            self._hold(self._eager(f"it could not be used: {served.reason}"))
            if held.key in self._refused:
                return
            self._refused.add(held.key)
            self._building = "starting"
        threading.Thread(target=self._again, args=(build,), kwargs={"ask": False}, name="again", daemon=True).start()

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
            reason=self._reason(),
            building=building,
            failure=None if aot else self._failure,
            published=self._published,
            build=origin.build,
        )

    def served(self, pipeline: Pipeline) -> Served:
        """What to say at the end of a request that this pipeline served."""
        runner = pipeline.runner
        reason = None if runner.mode == "aot" else self._reason()
        found = self._place if self._moved else None
        source, reason = (text and without_folders(text) for text in (runner.origin.source, reason))
        sought = key_of(self._key_fields())
        return Served(runner.mode, runner.origin.key, source, reason, found=found, sought=sought)

    def tell_memory(self, name: str) -> None:
        """Writes what this process holds into the log, once under each name."""
        if (process := (os.getpid(), name)) not in self._measured:
            self._measured.append(process)
            away = self.parts.device.type != "cpu"
            found = held([], self.parts.size) if away else held(self.pipeline.runner.weights())
            log.info("memory of %s (%d): %s", name, os.getpid(), found)

    def _reason(self) -> str | None:
        return "; ".join(dict.fromkeys(self._tried)) or None

    def _lacks(self) -> bool:
        runner = self.pipeline.runner
        if runner.mode == "aot":
            return False
        log.info("serving %s until a binary is built: %s", runner.mode, runner.origin.reason)
        self._building = "starting"
        return True

    def _unlike(self, place: Mapping[str, Any]) -> str | None:
        """Why what is held must not run in that environment; None if it may."""
        other = unlike(self._place, place)
        return f"the hardware is not what was declared ({'; '.join(map(str, other))})" if other else None

    def _again(self, build: Build | None, place: Mapping[str, Any] | None = None, *, ask: bool = True) -> None:
        """Gets a binary anew. place: another one than until now. ask: whether the Hub may have it."""
        with self._getting:
            self._failure, after = None, None
            if place is not None:
                after, self._place = self._unlike(place), place
            try:
                self._hold(self._open(after))
                if self.pipeline.runner.mode != "aot":
                    self._get(build, ask=ask)
            finally:
                self._building = None

    def _hold(self, pipeline: Pipeline) -> None:
        """A single assignment: requests see the old one or the new one."""
        self._number += 1
        self.pipeline = pipeline

    @property
    def _names_only(self) -> bool:
        """Whether this process may only name what its forks open."""
        return self._namer == os.getpid()

    def _open(self, after: str | None = None, *, untried: bool = False) -> Pipeline:
        """What the store has for the place where requests run, else eager. after: why this is done again. untried:
        whether what the parent has downloaded is to be tried out, and used."""
        if after:
            log.warning("%s", after)
            self._tried.append(after)
        if self._names_only:
            try:
                return Pipeline(self.folder, self._told(name_parts(self.parts, [local_source()], self._key_fields())))
            except BinaryMissing as error:
                return self._eager(error.reason)
        hub = self._hub() if untried else None
        sources = [local_source(), *([Downloaded(hub)] if hub else [])]
        return Pipeline(self.folder, self._told(open_parts(self.parts, "auto", sources, self._key_fields())))

    def _key_fields(self) -> dict[str, Any]:
        return self._fields | {"environment": self._place}

    def _eager(self, reason: str) -> Pipeline:
        """For forks to run eagerly."""
        return Pipeline(self.folder, self._told(Named("eager", self.parts, Origin(reason=reason))))

    def _told(self, runner: Runner) -> Runner:
        if runner.origin.reason:
            self._tried.append(runner.origin.reason)
        return runner

    def _hub(self) -> HubStore | None:
        return hub_source(self.parts.config, self.parts.dtype, progress=self._say)

    def _prepare(self, build: Build | None, when: threading.Event | None) -> None:
        if when is not None:
            when.wait()
        with self._getting:
            self._get(build)

    def _get(self, build: Build | None, *, ask: bool = True) -> None:
        try:
            hub = self._hub()
            if hub is None or not (ask and self._fetch(hub)):
                self._build(build or self._command())
                if hub is not None and self._failure is None:
                    self._publish(hub)
        except CompileCacheError as error:  # of the local store
            self._failure = str(error)
        except Exception as error:
            log.exception("no binary could be prepared")
            self._failure = f"it could not be prepared ({type(error).__name__})"
        finally:
            self._building = None

    def _command(self) -> list[str]:
        place = ["--model", str(self.folder), "--device", self.parts.device.type]
        return [sys.executable, "-m", "model", "compile", *place, "--json"]

    def _say(self, text: str) -> None:
        self._building = text[:STEP]

    def _fetch(self, hub: HubStore) -> bool:
        """Whether the repository has given a binary that serves now."""
        self._say(f"asking {hub.name}")
        try:
            if self._names_only:
                runner = name_parts(self.parts, [Untried(hub)], self._key_fields(), tried=False)
            else:
                runner = open_parts(self.parts, "aot", [hub], self._key_fields())
        except CompileCacheError as error:
            self._tried.append(why(error))
            log.info("%s", error)
            return False
        self._hold(Pipeline(self.folder, self._told(runner)))
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
            if not callable(build):
                find_compiler()  # before a process that would load the model first
            self._failure = build() if callable(build) else run_build(build, self._say)
            if self._failure is None:
                self._hold(self._open())
                if self.pipeline.runner.mode != "aot":
                    self._failure = "the new binary could not be used"
        except CompilerMissing as error:
            self._failure = str(error)
        except Exception as error:
            log.exception("the build could not be run")
            self._failure = f"the build could not be run ({type(error).__name__})"
        seconds = time.monotonic() - begin
        log.info("build: %s after %.0f s, serving %s", self._failure or "done", seconds, self.pipeline.runner.mode)
