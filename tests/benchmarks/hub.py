"""From process start to a binary that serves, stage by stage: python -m tests.benchmarks.hub [--milliseconds N]

A first start that finds the binary in a Hub repository, a second start that finds it in its own cache, and a start that
has to build it; each in a fresh process. The Hub is one on this machine; --milliseconds delays each of its answers, as
a distant one would. Prints a Markdown table. Takes four minutes on two cores; run it on a machine that does nothing
else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPO = "me/binaries"
STAGES = ("Python and torch", "weights read, key computed", "main's commit asked for", "manifest fetched",
          "package fetched and hashed", "manifest and members checked", "trial run in a child process",
          "stored", "found in the cache, hashed, checked", "opened, weights bound")  # fmt: skip
VERIFYING = "manifest and members checked"


@contextmanager
def timed(into: dict[str, float], owner: Any, name: str, stage: str) -> Iterator[None]:
    """Calls of a function, from the outermost one, added up under a stage."""
    original, depth = getattr(owner, name), [0]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        begin, depth[0] = time.perf_counter(), depth[0] + 1
        try:
            return original(*args, **kwargs)
        finally:
            depth[0] -= 1
            if not depth[0]:
                into[stage] = into.get(stage, 0.0) + time.perf_counter() - begin

    setattr(owner, name, wrapped)
    try:
        yield
    finally:
        setattr(owner, name, original)


def worker(started: float) -> dict[str, float]:
    """In a fresh process: opens the embedded model's binary from the cache, else from the Hub; seconds by stage."""
    from contextlib import ExitStack

    from compile_cache import hub_fetch, proof, sources
    from compile_cache.hub_repo import HubRepo
    from compile_cache.store import LocalStore
    from model import binary, parts
    from model.__main__ import EMBEDDED
    from model.service.sources import hub_source, local_source

    seconds = {"Python and torch": time.time() - started}
    with ExitStack() as stack:
        for owner, name, stage in (
            (parts, "load_parts", "weights read, key computed"),
            (binary, "binary_fields", "weights read, key computed"),
            (HubRepo, "tip", "main's commit asked for"),
            (HubRepo, "manifest", "manifest fetched"),
            (HubRepo, "package", "package fetched and hashed"),
            (hub_fetch, "read_manifest", VERIFYING),
            (hub_fetch, "check_members", VERIFYING),
            (proof, "check", "trial run in a child process"),
            (LocalStore, "put", "stored"),
            (LocalStore, "find", "found in the cache, hashed, checked"),
            (sources, "open_binary", "opened, weights bound"),
        ):
            stack.enter_context(timed(seconds, owner, name, stage))
        model = parts.load_parts(EMBEDDED)
        runner = binary.open_parts(model, "aot", [local_source(), hub_source(model.config, model.dtype)])
    return seconds | {"ready": time.time() - started, "bytes": runner.origin.size}


def run(arguments: list[str], **environment: str) -> dict[str, float]:
    """The last line of a fresh process' output, as JSON."""
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def publish(store: Path, hub: Any) -> None:
    """Puts the only entry of a local store on the Hub."""
    [folder] = (store / "v1").iterdir()
    hub.repos.create(REPO)
    hub.repos.put(REPO, {f"{folder.name}/{path.name}": path.read_bytes() for path in folder.iterdir()})


def main(milliseconds: int) -> None:
    import platform

    from tests.fixtures.fake_hub import FakeHub

    with tempfile.TemporaryDirectory(prefix="onegraph-benchmark-") as folder, FakeHub() as hub:
        place = Path(folder)
        begin = time.time()
        built = run(["model", "compile", "--json"], ONEGRAPH_CACHE=str(place / "built"))
        building = time.time() - begin
        publish(place / "built", hub)
        if milliseconds:
            hub.fail("", before=lambda: time.sleep(milliseconds / 1000))
        there = {"COMPILE_CACHE_REPO": REPO, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
        start: Callable[[], dict[str, float]] = lambda: run(  # noqa: E731
            ["tests.benchmarks.hub", "--started", str(time.time())], ONEGRAPH_CACHE=str(place / "fetched"), **there
        )
        first, second = start(), start()
    print(f"{os.cpu_count()} cores, {platform.machine()}, package of {built['bytes'] / 1e6:.2f} MB, "
          f"answers of the Hub delayed by {milliseconds} ms\n")  # fmt: skip
    print("| seconds | from the Hub | from its cache |\n|---|---|---|")
    for stage in STAGES:
        print(f"| {stage} | {first.get(stage, 0):.3f} | {second.get(stage, 0):.3f} |")
    print(f"| **process start to ready** | **{first['ready']:.1f}** | **{second['ready']:.1f}** |")
    print(f"| against building ({building:.0f} s) | {building / first['ready']:.0f}× sooner "
          f"| {building / second['ready']:.0f}× sooner |")  # fmt: skip
    fetching = sum(first[stage] for stage in STAGES[2:5])
    print(f"\nVerification (manifest, key, members) takes {1000 * first[VERIFYING]:.0f} ms, "
          f"{100 * first[VERIFYING] / fetching:.0f} % of the download's {fetching:.2f} s.")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--milliseconds", type=int, default=0, metavar="N", help="delay of each answer of the Hub")
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.started:
        print(json.dumps(worker(options.started)))
    else:
        main(options.milliseconds)
