"""Figures about a process's memory, and whose the pages of its weights are, on both sides of a fork."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch

from model.service.memory import PAGE, Held, held
from tests.conftest import ROOT

SIZE = 20_000_000
SCRIPT = """
import json, os, sys, torch
from dataclasses import asdict
from model.service.memory import held
weights = [torch.ones(20_000_000, dtype=torch.uint8) for _ in range(2)]
said = {"alone": asdict(held(weights))}
reading, writing = os.pipe()
if os.fork() == 0:
    shared = asdict(held(weights))
    weights[0].fill_(2)
    os.write(writing, json.dumps([shared, asdict(held(weights))]).encode())
    os._exit(0)
said["shared"], said["written"] = json.loads(os.read(reading, 65536))
print(json.dumps(said))
"""


def test_pages_are_shared_until_they_are_written() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    slack = 4 * PAGE  # the ends of both, which are in no whole page
    for name, private in (("alone", 2 * SIZE), ("shared", 0), ("written", SIZE)):
        assert said[name]["weights"] == 2 * SIZE
        assert private - slack <= said[name]["private_weights"] <= private, name
    assert said["written"]["private"] - said["shared"]["private"] >= SIZE - slack
    assert said["written"]["resident"] >= said["written"]["private"] > SIZE


def test_what_shares_memory_counts_once_and_a_file_is_shared_memory() -> None:
    before = held([])
    assert (before.weights, before.private_weights) == (0, 0)
    with open("/dev/shm/onegraph-test", "w+b") as file:
        Path(file.name).unlink()
        file.truncate(SIZE)
        mapped = torch.from_file(f"/proc/self/fd/{file.fileno()}", True, SIZE, dtype=torch.uint8).fill_(1)
        after = held([mapped, mapped.view(2, -1), mapped[:10]])
    assert after.weights == SIZE
    assert after.shared_memory - before.shared_memory >= SIZE


def test_what_a_system_does_not_tell_is_unknown() -> None:
    assert str(Held(None, None, 0, 15_000_000, None, None)) == (
        "unknown resident, unknown of it private, 0.0 MB shared memory; weights 15.0 MB, unknown of them private"
    )
