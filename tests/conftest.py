"""What the tests share: one cache of compiled binaries for the whole run, filled once, and who runs what.

A compiled graph takes minutes, so the run has one cache folder. ONEGRAPH_TEST_CACHE names one that outlives the run.
Two processes share the tests (pytest-xdist): one takes those of the page, with one app between them, the other begins
with the rest, file by file. `-n 0` runs everything in one process.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parent.parent
EMBEDDED = ROOT / "model" / "tiny"
os.environ.setdefault("ONEGRAPH_DEVICE", "cpu")  # what needs a GPU says so


pytest_plugins = ["tests.fixtures.browser"]
# What takes longest, in this order; the rest is shared out at the end.
FIRST = ("tests/app/", "tests/compile_cache/", "tests/zerogpu/", "tests/model/test_embedded", "tests/model/test_binary")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """So that nobody is left alone with a long one."""

    def place(item: pytest.Item) -> int:
        return next((place for place, part in enumerate(FIRST) if item.nodeid.startswith(part)), len(FIRST))

    items.sort(key=place)


class Shares(LoadScopeScheduling):
    """Tests that share an expensive fixture stay in one process: those of one app, and those of one file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((name for name in ("app", "zerogpu") if file.startswith(f"tests/{name}/")), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Shares:
    return Shares(config, log)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's cache folder, private to it and the same in all of its processes."""
    kept = os.environ.get("ONEGRAPH_TEST_CACHE")
    run = tmp_path_factory.getbasetemp()
    folder = Path(kept) if kept else (run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / "cache"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def python(cache: Path) -> Callable[..., str]:
    """`python("-m", "model", ...)` runs a fresh process on the run's cache and returns its standard output."""

    def run(*arguments: str, **environment: str) -> str:
        env = {**os.environ, "ONEGRAPH_CACHE": str(cache), "HF_HUB_OFFLINE": "1", **environment}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=1800
        )
        assert done.returncode == 0, f"{arguments} exited with {done.returncode}:\n{done.stdout}\n{done.stderr[-4000:]}"
        return done.stdout

    return run


@pytest.fixture(scope="session")
def built(python: Callable[..., str]) -> Callable[[str], dict]:
    """`built(precision)` compiles the embedded model's graph, once for each, and returns what was printed."""
    done: dict[str, dict] = {}

    def build(precision: str) -> dict:
        if precision not in done:
            done[precision] = json.loads(python("-m", "model", "compile", "--precision", precision, "--json"))
        return done[precision]

    return build
