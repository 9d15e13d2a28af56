"""A duplicate of the Space: the repository's files, the variables that are copied, no secret, and an empty disk."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from compile_cache.manifest import PACKAGE
from compile_cache.store import MANIFEST
from tests.app.conftest import REPO, settled, start_app, stop_app, wait_for
from tests.conftest import ROOT
from tests.fixtures.fake_hub import FakeHub
from tests.fixtures.zerogpu.scheduler import FakeScheduler


def copied(folder: Path) -> Path:
    """The files of the repository, and nothing else."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.parametrize("hardware", ["CPU Basic", "ZeroGPU"])
def test_a_duplicate_serves_at_once_and_takes_the_binary_from_the_hub(
    hardware: str, tmp_path: Path, cache: Path, built: Callable[[str], dict], hub: FakeHub
) -> None:
    key = built("auto")["key"]
    entry = cache / "v1" / key
    hub.repos.put(REPO, {f"{key}/{name}": (entry / name).read_bytes() for name in (MANIFEST, PACKAGE)})
    for name in ("home", "programs"):
        (tmp_path / name).mkdir()
    variables = {"COMPILE_CACHE_REPO": REPO, "HF_ENDPOINT": hub.url, "ONEGRAPH_CACHE": ""}
    folder, zero = tmp_path / "app", hardware == "ZeroGPU"
    with FakeScheduler() as scheduler:
        if zero:
            variables["SPACES_ZERO_DEVICE_API_URL"] = scheduler.url
        app = start_app(
            folder,
            ["-m", "tests.fixtures.zerogpu.launcher", str(folder)] if zero else ["app.py"],
            root=copied(tmp_path / "copy"),
            inherited={"HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "programs")},  # no compiler either
            **variables,
        )
        try:
            first = app.client().predict("a red circle", 7, 1, api_name="/generate")[2]
            assert first["frames"] == 9
            assert first["mode"] == "aot" or not zero, "on ZeroGPU the binary is there before the page"
            now = settled(app)
            tip = hub.repos.get(REPO).resolve("main")
            assert (now["mode"], now["key"], now["source"]) == ("aot", key, f"Hub {REPO} at {tip[:7]}")
            assert (now["failure"], now["published"]) == (None, None)
            report = app.client().predict("a red circle", 7, 1, api_name="/generate")[2]
            assert (report["mode"], report["key"]) == ("aot", key)
            assert len(scheduler.asked) == 2 * zero, "a GPU was asked for by more than the two videos"
            assert (tmp_path / "home" / ".cache" / "onegraph" / "v1" / key / PACKAGE).exists()
        finally:
            stop_app(app)
            wait_for("nothing outlives the app", lambda: not app.family())
