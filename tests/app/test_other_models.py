"""MODEL_ID in the app: another model serves, with its licence; one that cannot be used is told of, and the embedded one
serves."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.app.conftest import start_app, stop_app, visit
from tests.app.test_page import finished
from tests.app.test_why import panel
from tests.conftest import ROOT
from tests.fixtures.fake_hub import FakeHub
from tests.fixtures.folders import make_folder
from tests.model.published.test_locate import WEIGHTS, content, gated, pickled, retyped, without

WHOLE = "small/whole"
# MODEL_ID, what is done to the repository, and the beginning of what is said of it.
BAD: dict[str, tuple[str, Callable[[FakeHub], None], str]] = {
    "unknown": ("nobody/nothing", lambda hub: None, "the Hub has no model nobody/nothing"),
    "gated": (WHOLE, gated, f"{WHOLE} is gated: set HF_TOKEN"),
    "half there": (WHOLE, lambda hub: without(hub, WHOLE, WEIGHTS), f"{WHOLE}@"),
    "pickles": (WHOLE, pickled, f"{WHOLE}@"),
    "another architecture": (
        WHOLE,
        lambda hub: retyped(hub, WHOLE, "transformer/config.json", _class_name="CogVideoXTransformer3DModel"),
        f"{WHOLE}@",
    ),
    "a full disk": (WHOLE, lambda hub: None, "the disk is too small for the model"),
}
SAYS = """
import json, shutil, sys
from types import SimpleNamespace
if sys.argv[2:]:
    shutil.disk_usage = lambda folder: SimpleNamespace(total=1, used=1, free=1)
from model.__main__ import main
status = main(["generate", "a red circle", "--model", sys.argv[1], "--json"])
import app
print(json.dumps([status, app.problem, app.serving.folder == app.EMBEDDED.resolve(), app.model_facts()["Model"]]))
"""

# What a model raises while it is read, by an expression, and what is said of it.
RAISED = {
    "torch.OutOfMemoryError('CUDA out of memory. Tried to get 20 GiB')": "it does not fit in the memory of the GPU",
    "MemoryError()": "it does not fit in the memory of this machine",
    "RuntimeError('DefaultCPUAllocator: can\\'t allocate memory')": "it does not fit in the memory of this machine",
    "OSError(5, 'Input/output error')": "[Errno 5] Input/output error",
    "ConfigError('one line\\nand another')": "one line and another",
    "KeyError('a')": "KeyError",
    "type('Strange', (Exception,), {})('secret /home/me')": "Strange",
}
RAISES = """
import json, sys, torch, app
from model.published import locate
from model.__main__ import main
from model.config import ConfigError
def reads(folder, **settings):
    if folder == app.EMBEDDED:
        return app.serving
    raise error
def finds(text, **settings):
    raise error
app.Serving, app.locate = reads, lambda text, **settings: app.Located(text)
locate.locate = finds
for expression in json.loads(sys.argv[1]):
    error = eval(expression)
    serving, _, problem = app.opened("theirs")
    status = main(["explain", "--model", "theirs"])
    print(json.dumps([serving is app.serving, problem, status]))
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    """With one small repository that has every part."""
    with FakeHub() as hub:
        hub.reset(WHOLE)
        files = content(make_folder(tmp_path / "small"))
        hub.repos.put(WHOLE, files | {"transformer/diffusion_pytorch_model.bin": b"a pickle"})
        yield hub


def asks(hub: FakeHub, folder: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_CACHE": str(folder / "hf"), "HF_TOKEN": ""}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_used_is_told_in_one_sentence(hub: FakeHub, tmp_path: Path, case: str) -> None:
    """By the command line, which gives up, and by the app, which goes on with the embedded model."""
    wanted, spoil, words = BAD[case]
    spoil(hub)
    variables = {**os.environ, **asks(hub, tmp_path), "MODEL_ID": wanted, "ONEGRAPH_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", SAYS, wanted, *(["full"] if case == "a full disk" else [])]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    told, (status, problem, embedded, model) = map(json.loads, done.stdout.splitlines()[-2:])
    assert told["error"].startswith(words)
    assert (status, embedded) == (1, True)
    assert problem.startswith(f"The model {wanted} cannot be used: {words}")
    assert "\n" not in problem
    assert "Traceback" not in done.stderr
    assert model != wanted


def test_whatever_a_model_raises_the_embedded_one_serves(tmp_path: Path) -> None:
    variables = {**os.environ, "MODEL_ID": "", "ONEGRAPH_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", RAISES, json.dumps(list(RAISED))]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said == [[True, f"The model theirs cannot be used: {words}.", 1] for words in RAISED.values()]
    logged = done.stderr.count("Traceback (most recent call last)")
    assert logged == sum(words in ("KeyError", "Strange") for words in RAISED.values())  # the kinds nobody foresaw


def test_the_page_says_why_and_the_embedded_model_serves(hub: FakeHub, tmp_path: Path, browser: Browser) -> None:
    gated(hub)
    app = start_app(tmp_path / "app", MODEL_ID=WHOLE, PATH=str(tmp_path), CXX="", **asks(hub, tmp_path))
    try:
        page = visit(browser, app.url)
        expect(page.get_by_role("alert")).to_have_text(
            re.compile(f"^The model {WHOLE} cannot be used: {WHOLE} is gated: .* The embedded model serves instead.$")
        )
        assert "gated" in app.client().predict(api_name="/status")["model"]["problem"]
        page.click("#generate")
        assert "eager" in finished(page)
        page.context.close()
    finally:
        stop_app(app)


def test_another_model_serves_with_its_licence(hub: FakeHub, tmp_path: Path, browser: Browser) -> None:
    app = start_app(tmp_path / "app", MODEL_ID=WHOLE, PATH=str(tmp_path), CXX="", **asks(hub, tmp_path))
    try:
        page = visit(browser, app.url)
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.locator("#knows")).to_have_count(0)
        said = panel(page)
        assert said["Model"] == "random weights"
        assert said["Licence"] == "not known; check the card; its onegraph.json says “Apache-2.0”"
        assert f"transformer: {WHOLE}@" in said["Weights"]
        page.context.close()
        _, seed, report = app.client().predict("a red ball", 7, 1, "64x64", api_name="/generate")
        assert (seed, report["frames"], report["mode"]) == (7, 9, "eager")
    finally:
        stop_app(app)
        shutil.rmtree(tmp_path / "hf", ignore_errors=True)
