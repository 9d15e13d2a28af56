"""A Hub that fails: each fault ends within its budget, in one clear line, with the next source."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import pytest

from compile_cache import hub_http
from tests.compile_cache.hubs import QUICK, REPO, machine, offer, passed_over
from tests.fixtures.hub_faults import Socket

TIP, MANIFEST, PACKAGE, BYTES = "/revision/main", r"/resolve/.*/manifest\.json", r"/resolve/.*/package\.pt2", "/blob/"


@pytest.fixture
def hub(server, monkeypatch):
    monkeypatch.setattr(hub_http, "PAUSES", (0.05, 0.1))
    server.reset(REPO)
    return server


@pytest.fixture
def sound(hub, tmp_path):
    made = offer(tmp_path)
    hub.repos.put(REPO, made.files())
    return made


STATUS = {
    401: "the Hub answered 401: the repository does not exist, or it is private",
    403: "the Hub answered 403: no access to the repository",
    404: "the Hub answered 404",
    412: "the Hub answered 412: the repository was changed in the meantime",
    418: "the Hub answered 418",
    429: "the Hub answered 429: too many requests",
    500: "the Hub answered 500: internal server error",
    503: "the Hub answered 503: service unavailable",
}


@pytest.mark.parametrize("stage", [TIP, MANIFEST, PACKAGE, BYTES])
@pytest.mark.parametrize("status", STATUS)
def test_status(hub, sound, tmp_path, status, stage):
    hub.fail(stage, status=status)
    line = passed_over(machine(tmp_path / "one", hub), sound.key, QUICK.ask)
    if status == 404 and stage != TIP:  # at a commit that is there: a miss, or half an entry
        assert line == ("" if stage == MANIFEST else "the repository has the manifest but not the package")
    else:
        assert line == STATUS[status]
    assert hub.count(stage) == (3 if status in (429, 500, 503) else 1)
    hub.heal()
    assert machine(tmp_path / "one", hub).hub.find(sound.key) is not None


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("RepoNotFound", "the Hub answered 404: there is no such repository"),
        ("RevisionNotFound", "the Hub answered 404: the repository has no branch main"),
        ("SomethingNew", "the Hub answered 404"),
    ],
)
def test_kinds_of_404(hub, sound, tmp_path, code, line):
    hub.fail(TIP, status=404, headers={"X-Error-Code": code, "X-Error-Message": "<b>look\tthere</b>"})
    assert passed_over(machine(tmp_path / "one", hub), sound.key, QUICK.ask) == line


def test_the_hubs_own_words_for_403(hub, sound, tmp_path):
    hub.fail(TIP, status=403, headers={"X-Error-Message": "pay\tfirst" + "!" * 500})
    line = passed_over(machine(tmp_path / "one", hub), sound.key, QUICK.ask)
    assert line.startswith("the Hub answered 403: no access to the repository (payfirst!!")
    assert len(line) < 250


@pytest.mark.parametrize("stage", [TIP, MANIFEST, PACKAGE, BYTES])
@pytest.mark.parametrize("fault", [{"status": 429}, {"status": 500}, {"status": 503}, {"cut": 20}])
def test_what_passes_is_waited_for(hub, sound, tmp_path, stage, fault):
    if "cut" in fault and stage == PACKAGE:
        return  # a redirect has no body to be cut
    hub.fail(stage.replace("/resolve/", "/resolve-cache/") if "cut" in fault else stage, times=2, **fault)
    assert machine(tmp_path / "one", hub).hub.find(sound.key).package.read_bytes() == sound.package


@pytest.mark.parametrize(
    ("headers", "line"),
    [
        ({"Retry-After": "0"}, "the Hub answered 429: too many requests"),
        ({"Retry-After": "600"}, "asks to wait 600 s, longer than there is time"),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, "the Hub answered 429: too many requests"),
        ({"RateLimit": '"api";r=0;t=55'}, "asks to wait 55 s, longer than there is time"),
        ({"RateLimit": '"api";r=7;t=55'}, "the Hub answered 429: too many requests"),
    ],
)
def test_retry_after(hub, sound, tmp_path, headers, line):
    hub.fail(TIP, status=429, headers=headers)
    assert line in passed_over(machine(tmp_path / "one", hub), sound.key, 0)
    assert hub.count() == (1 if "longer" in line else 3)


def test_retry_after_is_waited_for_within_the_budget(hub, sound, tmp_path):
    hub.fail(TIP, times=1, status=429, headers={"Retry-After": "1"})
    began = time.monotonic()
    assert machine(tmp_path / "one", hub).hub.find(sound.key) is not None
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize("stage", [TIP, MANIFEST, PACKAGE, BYTES])
def test_accepted_and_silent(hub, sound, tmp_path, stage):
    hub.fail(stage, silent=True)
    assert passed_over(machine(tmp_path / "one", hub, limits=QUICK), sound.key, QUICK.ask) == "no answer within 2 s"


@pytest.mark.parametrize("drip", [0.0, 0.01])
def test_a_server_that_is_none(hub, sound, tmp_path, drip):
    """Silent from the first byte, or one byte of its head at a time."""
    with Socket(drip) as server:
        assert (
            passed_over(machine(tmp_path / "one", server.url, limits=QUICK), sound.key, QUICK.ask)
            == "no answer within 2 s"
        )


SLOW = {
    TIP: "no answer within 2 s",
    "/resolve-cache/": "no answer within 2 s",
    BYTES: "too slow to be done within 6 s",
}


@pytest.mark.parametrize("stage", SLOW)
def test_slow_drip(hub, sound, tmp_path, stage):
    hub.fail(stage, drip=0.05)
    assert SLOW[stage] in passed_over(machine(tmp_path / "one", hub, limits=QUICK), sound.key, QUICK.ask)


def test_a_download_that_stalls(hub, sound, tmp_path):
    hub.fail(BYTES, cut=100, hold=True)
    patient = replace(QUICK, ask=60.0, download=60.0)  # only the stall can end it
    line = passed_over(machine(tmp_path / "one", hub, limits=patient), sound.key, 60.0)
    assert line == "nothing arrived for 1.5 s (0.1 KB of 0.6 KB)"


@pytest.mark.parametrize("stage", [TIP, "/resolve-cache/", BYTES])
def test_disconnected_half_way(hub, sound, tmp_path, stage):
    hub.fail(stage, cut=30)
    line = passed_over(machine(tmp_path / "one", hub), sound.key, QUICK.ask)
    assert line.startswith("the connection to the Hub broke off")
    assert hub.count(stage) == 3


def test_answers_that_are_not_the_hubs(hub, sound, tmp_path):
    for answer in (
        b"<html>log in to the hotel's network</html>",
        b"{}",
        b'{"sha": "main"}',
        b'{"sha": 5}',
        b"[" * 9999,
    ):
        hub.fail(TIP, times=1, replace=answer)
        line = passed_over(machine(tmp_path / "one", hub), sound.key, QUICK.ask)
        assert line == "the Hub did not say at which commit main is"


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("address", ["http://nowhere.invalid", "nonsense", "http://[", "http://127.0.0.1:99999"])
def test_not_reachable(sound, tmp_path, address):
    line = passed_over(machine(tmp_path / "one", address), sound.key, QUICK.ask)
    assert line.startswith(("the Hub cannot be reached (", "the Hub cannot be asked (", "the Hub could not be asked ("))


def test_connection_refused(sound, tmp_path):
    line = passed_over(machine(tmp_path / "one", closed_port()), sound.key, QUICK.ask)
    assert line.startswith("the Hub cannot be reached (")
    assert "Connection refused" in line
