"""Programs use the app: the Python client and the npm client get the finished file, the seed and the report."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import imageio_ffmpeg

from model.service.video import read_settings
from tests.app.conftest import App, wait_for


def call_npm(folder: Path, app: App, **arguments: Any) -> dict[str, Any]:
    done = subprocess.run(
        ["node", "generate.mjs", app.url, json.dumps(arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout)


def test_python_client(app: App) -> None:
    path, seed, report = app.client().predict(prompt="a red circle", seed=7, api_name="/generate")
    assert seed == 7
    assert Path(path).name == "onegraph-a-red-circle-seed7.mp4"
    reader = imageio_ffmpeg.read_frames(path)
    assert next(reader)["fps"] == 16
    assert sum(1 for _ in reader) == report["frames"] == 81
    assert read_settings(Path(path)) == report["settings"]
    assert report["settings"]["prompt"] == "a red circle"
    assert (report["blocks"], report["stop_reason"], len(report["digest"])) == (7, "full", 64)
    assert report["mode"] in ("eager", "aot")


def test_npm_client(app: App, npm_client: Path, tmp_path: Path) -> None:
    answer = call_npm(npm_client, app, prompt="a blue star", seed="12", blocks=3, size="96x160")
    assert answer["seed"] == 12
    assert answer["name"] == "onegraph-a-blue-star-seed12.mp4"
    path = tmp_path / "a.mp4"
    path.write_bytes(base64.b64decode(answer["bytes"]))
    assert read_settings(path) == answer["report"]["settings"]
    reader = imageio_ffmpeg.read_frames(str(path))
    assert next(reader)["source_size"] == (160, 96)
    assert sum(1 for _ in reader) == answer["report"]["frames"] == 33
    assert "whole number" in call_npm(npm_client, app, prompt="a", seed="abc")["error"]


def test_seeds_are_drawn_and_repeatable(app: App) -> None:
    client = app.client()
    _, one, first = client.predict("a red circle", None, 2, api_name="/generate")
    _, two, _ = client.predict("a red circle", None, 2, api_name="/generate")
    assert one != two
    _, three, again = client.predict("a red circle", str(one), 2, api_name="/generate")
    assert three == one
    if first["mode"] == again["mode"]:  # the build may have ended in between
        assert first["digest"] == again["digest"]


def test_what_is_public_is_described(app: App) -> None:
    api = app.client().view_api(return_format="dict")
    assert list(api["named_endpoints"]) == ["/generate", "/last", "/status"]
    assert "why it does not serve" in api["named_endpoints"]["/status"]["description"]
    assert "also one that was cancelled" in api["named_endpoints"]["/last"]["description"]
    assert not api["unnamed_endpoints"]
    described = api["named_endpoints"]["/generate"]
    assert [one["parameter_name"] for one in described["parameters"]] == ["prompt", "seed", "blocks", "size", "steps"]
    assert len(described["returns"]) == 3
    for words in ("finished mp4", "seed:", "blocks:", "digest"):
        assert words in described["description"]


def test_cancelled_job_makes_room_and_leaves_nothing(app: App) -> None:
    client = app.client()
    long = client.submit("a red circle", 7, 60, "128x128", 8, api_name="/generate")  # the slowest there is
    wait_for("the first block", long.outputs)
    assert long.cancel()
    _, _, report = client.predict("a red circle", 7, 1, api_name="/generate")
    assert report["frames"] == 9
    assert len(long.outputs()) < 60
    wait_for("temporary folders are gone", lambda: not list((app.folder / "tmp").glob("onegraph-video-*")))
