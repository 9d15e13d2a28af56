"""Videos from forked GPU workers: the frames of the plain run, one worker for many requests, one open package."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from model.service.video import read_settings
from tests.app.conftest import wait_for
from tests.fixtures.zerogpu import mischief
from tests.zerogpu.conftest import Zero, token


def digest_off_zerogpu(python: Callable[..., str], prompt: str, seed: int, blocks: int) -> str:
    arguments = [prompt, "--seed", str(seed), "--blocks", str(blocks), "--json"]
    done = json.loads(python("-m", "model", "generate", *arguments))
    assert done["mode"] == "aot"
    return done["digest"]


def test_two_clients_get_the_plain_runs_frames_from_one_worker(zero: Zero, python: Callable[..., str]) -> None:
    one, two = zero.client(), zero.client("ada")
    path, seed, first = one.predict("a red circle", 7, 3, api_name="/generate")
    _, _, second = two.predict("a blue star", 8, 2, api_name="/generate")
    assert path.endswith(".mp4")
    assert (seed, first["mode"], second["mode"]) == (7, "aot", "aot")
    assert first["digest"] == digest_off_zerogpu(python, "a red circle", 7, 3)
    assert second["digest"] == digest_off_zerogpu(python, "a blue star", 8, 2)
    workers = zero.scheduler.workers()
    assert len(workers) == 2
    assert workers[0] == workers[1] != zero.app.process.pid
    assert [asked.get("token") for asked in zero.scheduler.asked] == [None, token("ada")]
    assert mischief.openers(zero.app.folder) == [zero.app.process.pid], "a worker opened the package again"


def test_two_at_once_see_only_their_own(zero: Zero) -> None:
    """The second asks while the first one's worker stands still in the middle of its video."""
    asked = {None: ("a red circle", 7, 3), "ada": ("a blue star", 8, 3)}
    alone = {user: zero.client(user).predict(*request, api_name="/generate") for user, request in asked.items()}
    zero.plan("hold", 1)
    jobs = {}
    for user, request in asked.items():
        jobs[user] = zero.client(user).submit(*request, api_name="/generate")
        wait_for("the first one's first block", lambda: jobs[None].outputs())
    wait_for("the second waits", lambda: jobs["ada"].status().code.name in ("IN_QUEUE", "PROCESSING"))
    zero.clear()
    for user, (prompt, seed, _) in asked.items():
        path, _, report = jobs[user].result()
        assert {part[1] for part in jobs[user].outputs()} == {seed}
        assert [part[2].get("block") for part in jobs[user].outputs()] == [1, 2, 3, None]
        assert (report["digest"], report["settings"]["prompt"]) == (alone[user][2]["digest"], prompt)
        assert read_settings(Path(path)) == report["settings"]
    assert alone[None][2]["digest"] != alone["ada"][2]["digest"]


def test_the_platform_was_told_of_the_start_once(zero: Zero) -> None:
    assert zero.scheduler.startups == 1


def test_weights_are_held_once(zero: Zero) -> None:
    """The worker is told of in the log, once, and has no page of the weights for itself."""
    for _ in range(2):
        zero.client().predict("a red circle", 7, 2, api_name="/generate")
    worker = zero.scheduler.workers()[-1]
    zero.settled()
    line = (
        r"memory of the process that {} \({}\): .* ([\d.]+) MB of it private, .*; weights ([\d.]+) MB, ([\d.]+) MB of"
    )
    page = re.findall(line.format("serves the page", zero.app.process.pid), zero.app.log())
    videos = re.findall(line.format("makes videos", worker), zero.app.log())
    assert len(page) == len(videos) == 1
    (_, weights, own), (private, same, copied) = (map(float, figures[0]) for figures in (page, videos))
    assert 0.9 * weights < own <= weights == same
    assert copied < 0.01 * weights
    assert private > 0
