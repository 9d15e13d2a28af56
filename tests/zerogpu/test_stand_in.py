"""The stand-ins let the real spaces package do its work: emulation, packing, a forked worker, its reuse; and what the
main process is told of the GPU may differ from what a worker finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.fixtures.zerogpu.scheduler import FakeScheduler

SCRIPT = """
import json, os, pathlib, sys
from tests.fixtures.zerogpu import shims
shims.install(sys.argv[1], pathlib.Path(sys.argv[2]), cuda_is_cpu=True)
import spaces
import torch
weight = torch.nn.Linear(4, 4).to("cuda")
emulated = str(weight.weight.device)
plain = weight.weight.to("cpu").sum().item()
@spaces.GPU(duration=7)
def work(factor):
    total = (torch.ones(4, device="cuda") @ weight.weight @ torch.ones(4, device="cuda")).item()
    return total * factor, os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]
from compile_cache.hardware import place_here, unlike
@spaces.GPU
def found(capability):
    torch.cuda.get_device_capability = lambda *args, **options: capability
    return place_here("cuda")
declared = place_here("cuda")
from spaces.zero import torch as zero_torch
packed = zero_torch.pack()
one, two = work(1.0), work(2.0)
same, other = (unlike(declared, found(capability)) for capability in ((12, 0), (9, 0)))
said = {"emulated": emulated, "plain": plain, "packed": packed, "main": os.getpid(), "one": one, "two": two}
print(json.dumps(said | {"declared": declared, "same": same, "other": other}))
"""


def test_a_module_is_packed_and_restored_in_a_worker_that_is_reused(tmp_path: Path) -> None:
    with FakeScheduler() as scheduler:
        command = [sys.executable, "-c", SCRIPT, scheduler.url, str(tmp_path / "tensors")]
        env = {**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        said = json.loads(done.stdout.splitlines()[-1])
        assert said["emulated"] == "cuda:0"
        assert said["packed"] >= 64
        assert abs(said["one"][0] - said["plain"]) < 1e-5
        assert said["one"][1] == said["two"][1] != said["main"]
        assert scheduler.workers()[:2] == [said["one"][1]] * 2
        assert [grant.seconds for grant in scheduler.grants[:2]] == [10, 10]  # 7 s at the factor 1.5, rounded to even
        assert [grant.reuse for grant in scheduler.grants[:2]] == [False, True]
        assert not scheduler.open_grants()
        assert (said["declared"]["device"], said["declared"]["capability"]) == ("cuda", "12.0")
        assert said["same"] == [], "it differs in its name only"
        assert said["other"] == [["capability", "9.0", "12.0"]]
