"""What was made of a video until its job was cancelled: its own session gets it as a finished file, and nobody else."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from model.service.video import read_settings
from tests.app.conftest import PATIENCE, App, settled, wait_for
from tests.app.test_page import pixels

LONG = {"prompt": "a red circle", "seed": 7, "blocks": 40, "size": "128x128", "steps": 8}


def cancel(client: Client, block: int) -> list[Any]:
    """Cancels a long video when that block is there; what its job has sent until then."""
    job = client.submit(**LONG, api_name="/generate")
    wait_for("the blocks until then", lambda: len(job.outputs()) >= block)
    assert job.cancel()
    return job.outputs()


def call_npm(folder: Path, app: App, block: int) -> dict[str, Any]:
    command = ["node", "cancel.mjs", app.url, json.dumps(LONG), str(block)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


def refusal(client: Client) -> str:
    """Why /last gives this client nothing."""
    with pytest.raises(AppError) as caught:
        client.predict(api_name="/last")
    return str(caught.value)


def is_the_beginning(client: Client, path: Path, report: dict[str, Any], at_least: int) -> None:
    """Frame for frame what the same settings begin with."""
    made = report["blocks"]
    assert at_least <= made < 40
    assert (report["stop_reason"], report["frames"], "problem" in report) == ("cancelled", 9 + 12 * (made - 1), False)
    assert read_settings(path) == report["settings"] == {**report["settings"], **LONG}
    whole, _, other = client.predict(**{**LONG, "blocks": made}, api_name="/generate")
    assert other["stop_reason"] == "full"
    assert report["digest"] == other["digest"]
    assert np.array_equal(pixels(path), pixels(Path(whole)))


def test_what_was_made_comes_back_to_its_session_only(app: App) -> None:
    settled(app)
    client, other = app.client(), app.client()
    assert "no last video" in refusal(client)
    cancel(client, 2)
    path, seed, report = client.predict(api_name="/last")
    assert (Path(path).name, seed) == ("onegraph-a-red-circle-seed7.mp4", 7)
    assert "no last video" in refusal(other)
    is_the_beginning(other, Path(path), report, 2)
    again, _, same = client.predict(api_name="/last")
    assert (Path(again).read_bytes(), same) == (Path(path).read_bytes(), report)
    _, seed, report = other.predict(api_name="/last")
    assert (seed, report["stop_reason"]) == (7, "full")
    wait_for("temporary folders are gone", lambda: not list((app.folder / "tmp").glob("onegraph-*")))


def test_the_npm_client_gets_it_too_and_takes_it_along(app: App, npm_client: Path, tmp_path: Path) -> None:
    settled(app)
    answer = call_npm(npm_client, app, 2)
    path = tmp_path / answer["name"]
    path.write_bytes(base64.b64decode(answer["bytes"]))
    client = app.client()
    is_the_beginning(client, path, answer["report"], 2)
    client.session_hash = answer["session"]  # as if one could know it
    wait_for("nothing is kept of a client that has ended", lambda: "no last video" in refusal(client))


def test_a_client_that_was_cut_off_finds_it_when_it_comes_back(app: App) -> None:
    settled(app)
    call = f"{app.url}gradio_api/call/generate"
    begun = httpx.post(call, json={"data": list(LONG.values()), "session_hash": "someone"}).json()
    with httpx.stream("GET", f"{call}/{begun['event_id']}", timeout=PATIENCE) as answers:
        assert any(line == "event: generating" for line in answers.iter_lines())
    client = app.client()
    client.session_hash = "someone"

    def look() -> Any:
        try:
            return client.predict(api_name="/last")
        except AppError:
            return None  # it is still being made

    path, _, report = wait_for("the app has noticed", look)
    is_the_beginning(client, Path(path), report, 1)


def test_it_says_when_there_is_nothing(app: App) -> None:
    client = app.client()
    long = client.submit(**LONG, api_name="/generate")
    wait_for("the first block", long.outputs)
    assert "still being made" in refusal(client)
    waits = app.client()
    queued = waits.submit(**LONG, api_name="/generate")
    wait_for("it stands in the app's own queue", lambda: queued.communicator.event_id)
    assert queued.cancel()
    assert "no last video" in refusal(waits)
    assert long.cancel()
    assert client.predict(api_name="/last")[2]["stop_reason"] == "cancelled"
    with pytest.raises(AppError):
        client.predict("", api_name="/generate")
    assert client.predict(api_name="/last")[2]["stop_reason"] == "cancelled", "a refused form is no video"
