"""The opened binary: right results, and a clear refusal of every wrong weight and input."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import threading
import time
import timeit
from pathlib import Path

import pytest
import torch

from compile_cache import binary as binary_module
from compile_cache import scratch
from compile_cache.binary import Binary, open_binary
from compile_cache.errors import InputMismatch, PackageRefused, RunFailed, StoreError
from compile_cache.manifest import FileRecord
from compile_cache.specs import constants_of
from tests.compile_cache.toys import RING, WIDTH, change_weights, toy_entry_points


@pytest.fixture
def opened(toy) -> Binary:
    return open_binary(toy.entry.package, toy.weights(), toy.entry.manifest)


def fresh_weights(seed: int) -> dict[str, dict[str, torch.Tensor]]:
    """Weights of their own, so that no binary opened before is handed out."""
    return {entry.name: constants_of(entry.module) for entry in toy_entry_points(seed=seed)}


def eager(toy, name: str, *inputs: torch.Tensor):
    module = next(entry.module for entry in toy.entry_points if entry.name == name)
    with torch.no_grad():
        return module(*inputs)


@pytest.mark.parametrize("rows", [1, 2, 5, 64])
@pytest.mark.parametrize("steps", [0, 1, 9])
def test_equals_eager_over_three_calls(toy, opened, rows, steps):
    ring, eager_ring = torch.zeros(RING, WIDTH), torch.zeros(RING, WIDTH)
    x = eager_x = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows))
    for _ in range(3):
        x, count = opened.run("rollout", [x, ring, torch.tensor(steps)])
        eager_x, _ = eager(toy, "rollout", eager_x, eager_ring, torch.tensor(steps))
        assert int(count) == steps
        torch.testing.assert_close(x, eager_x)
        torch.testing.assert_close(ring, eager_ring)  # mutated in place, and the state goes on
    assert bool(ring.any()) == bool(steps)


@pytest.mark.parametrize("count", [1, 8])
def test_other_entry_point(toy, opened, count):
    tokens = torch.arange(count) % WIDTH
    [out] = opened.run("encode", [tokens])
    torch.testing.assert_close(out, eager(toy, "encode", tokens))


def test_weights_are_bound_by_reference_and_their_values_are_not_compiled_in(toy):
    """At build time the gain was all ones and the bias all zeros; here neither is."""
    others = toy_entry_points(seed=5)
    change_weights(others)
    weights = {entry.name: constants_of(entry.module) for entry in others}
    other = open_binary(toy.entry.package, weights, toy.entry.manifest)
    x, ring, steps = torch.ones(2, WIDTH), torch.zeros(RING, WIDTH), torch.tensor(2)
    with torch.no_grad():
        expected = others[0].module(x, torch.zeros(RING, WIDTH), steps)[0]
        torch.testing.assert_close(other.run("rollout", [x, ring, steps])[0], expected)
        others[0].module.body.gain.mul_(2)
        changed = others[0].module(x, torch.zeros(RING, WIDTH), steps)[0]
        torch.testing.assert_close(other.run("rollout", [x, ring, steps])[0], changed)
    assert not torch.allclose(changed, expected)


def test_opened_once(toy, opened, tmp_path):
    copy = tmp_path / "copy.pt2"
    copy.write_bytes(toy.entry.package.read_bytes())
    assert open_binary(toy.entry.package, toy.weights(), toy.entry.manifest) is opened
    assert open_binary(copy, toy.weights(), toy.entry.manifest) is opened


def test_weights_outlive_the_callers_names(toy):
    others = toy_entry_points(seed=9)
    weights = {
        entry.name: {**dict(entry.module.named_parameters()), **dict(entry.module.named_buffers())} for entry in others
    }
    binary = open_binary(toy.entry.package, weights, toy.entry.manifest)
    tokens = torch.tensor([1])
    expected = binary.run("encode", [tokens])[0].clone()
    del weights
    junk = [torch.randn(WIDTH, WIDTH) for _ in range(100)]
    torch.testing.assert_close(binary.run("encode", [tokens])[0], expected)
    assert len(junk) == 100


# -- wrong inputs: each named, and the binary goes on


def good_inputs() -> list[torch.Tensor]:
    return [torch.zeros(3, WIDTH), torch.zeros(RING, WIDTH), torch.tensor(2)]


WRONG_INPUTS = {
    "too few": (lambda i: i[:2], "takes 3 inputs, got 2"),
    "too many": (lambda i: [*i, i[0]], "takes 3 inputs, got 4"),
    "none": (lambda i: [], "takes 3 inputs, got 0"),
    "rank": (lambda i: [i[0][0], *i[1:]], "input x has 1 dimensions"),
    "fixed size": (lambda i: [torch.zeros(3, 9), *i[1:]], r"input x has shape \[3, 9\], expected \[rows in 1..64, 8\]"),
    "too big": (lambda i: [torch.zeros(65, WIDTH), *i[1:]], r"input x has shape \[65, 8\]"),
    "empty": (lambda i: [torch.zeros(0, WIDTH), *i[1:]], r"input x has shape \[0, 8\]"),
    "ring": (lambda i: [i[0], torch.zeros(5, WIDTH), i[2]], r"input ring has shape \[5, 8\], expected \[4, 8\]"),
    "dtype": (lambda i: [i[0].double(), *i[1:]], "input x has dtype float64, expected float32"),
    "count dtype": (lambda i: [*i[:2], i[2].int()], "input steps has dtype int32"),
    "transposed": (lambda i: [torch.zeros(WIDTH, 3).t(), *i[1:]], "input x is not contiguous"),
    "sliced": (lambda i: [torch.zeros(3, 16)[:, ::2], *i[1:]], "input x is not contiguous"),
    "meta": (lambda i: [i[0].to("meta"), *i[1:]], "input x is on meta"),
    "no tensor": (lambda i: [*i[:2], 2], "input steps is a int, not a tensor"),
}


@pytest.mark.parametrize("case", WRONG_INPUTS)
def test_wrong_inputs(opened, case):
    apply, reason = WRONG_INPUTS[case]
    with pytest.raises(InputMismatch, match=reason):
        opened.run("rollout", apply(good_inputs()))
    assert len(opened.run("rollout", good_inputs())) == 2


def test_unknown_entry_point(opened):
    with pytest.raises(InputMismatch, match="no entry point decode; there are encode, rollout"):
        opened.run("decode", [])


@pytest.fixture
def unchecked(opened, monkeypatch) -> Binary:
    """Without our checks in front, so that the library's own (AOTI_RUNTIME_CHECK_INPUTS) raise inside it."""

    class Nothing:
        def check(self, tensors):
            pass

    monkeypatch.setitem(opened._checks, "encode", Nothing())
    return opened


def test_survives_an_exception_in_the_binary(unchecked):
    for _ in range(3):
        with pytest.raises(RunFailed, match="encode failed: input_handles"):
            unchecked.run("encode", [torch.zeros(2, 2, dtype=torch.int64)[0].float()])
        assert unchecked.run("encode", [torch.tensor([1])])[0].shape == (1, WIDTH)


def test_many_threads(unchecked):
    """Good and failing runs from several threads at once; none gets stuck."""
    outcomes: list[str] = []

    def work(number: int) -> None:
        for turn in range(20):
            try:
                unchecked.run("encode", [torch.tensor([1 if (turn + number) % 2 else 1.5])])
                outcomes.append("fine")
            except RunFailed:
                outcomes.append("failed")

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(set(outcomes)) == ["failed", "fine"]
    assert len(outcomes) == 80


def test_input_checks_are_cheap(opened):
    check, inputs = opened._checks["rollout"], good_inputs()
    # 3 inputs: about 10 microseconds each time. The processor's seconds, which no other process can take.
    took = timeit.repeat(lambda: check.check(inputs), time.thread_time, number=1000, repeat=5)
    assert min(took) < 0.2


# -- packages that do not fit their manifest


def test_changed_after_the_check(toy, tmp_path):
    data = bytearray(toy.entry.package.read_bytes())
    data[len(data) // 2] ^= 1
    path = tmp_path / "changed.pt2"
    path.write_bytes(data)
    weights = fresh_weights(11)
    with pytest.raises(PackageRefused, match="sha256"):
        open_binary(path, weights, toy.entry.manifest)
    with pytest.raises(StoreError, match="cannot unpack"):
        open_binary(tmp_path / "missing.pt2", weights, toy.entry.manifest)


def test_a_manifest_that_binds_too_little(toy):
    bound = {**toy.entry.manifest.bound, "rollout": ("body.gain",)}
    lying = dataclasses.replace(toy.entry.manifest, bound=bound)
    with pytest.raises(PackageRefused, match="wants other weights"):
        open_binary(toy.entry.package, fresh_weights(12), lying)


def test_a_library_that_does_not_load(tmp_path, small):
    manifest, package = small
    with pytest.raises(PackageRefused, match="run: the library does not load"):
        open_binary(package, {}, manifest)
    content = package.read_bytes()
    assert manifest.files["package.pt2"] == FileRecord(len(content), manifest.package.sha256)


def test_for_another_device(toy):
    with pytest.raises(PackageRefused, match="for cpu, not for cuda"):
        open_binary(toy.entry.package, toy.weights(), toy.entry.manifest, device="cuda")


# -- what is left behind


def test_nothing_is_left_unpacked(toy, opened, small, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(PackageRefused):
        open_binary(small[1], {}, small[0])
    fresh = open_binary(toy.entry.package, fresh_weights(14), toy.entry.manifest)
    assert list(tmp_path.glob(f"{scratch.PREFIX}-*")) == []
    assert fresh.run("rollout", good_inputs())
    assert opened.run("rollout", good_inputs())


def test_no_place_to_unpack(toy, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    with pytest.raises(StoreError, match="cannot make a folder"):
        open_binary(toy.entry.package, fresh_weights(13), toy.entry.manifest)


LOAD = """
import os, sys
import torch
before, started = set(sys.modules), sum(os.times()[:4])
from pathlib import Path
from safetensors.torch import load_file
from compile_cache.sources import open_first
from compile_cache.store import LocalStore
weights = load_file(sys.argv[3])
weights = {"rollout": weights, "encode": {k: v for k, v in weights.items() if k != "body.shift"}}
weights["encode"]["body.shift"] = weights["rollout"]["body.shift"]
binary, resolution = open_first(sys.argv[2], [LocalStore(Path(sys.argv[1]))], weights)
out = binary.run("rollout", [torch.ones(1, 8), torch.zeros(4, 8), torch.tensor(2)])
seconds = sum(os.times()[:4]) - started  # the processor's, its children's too
new = set(sys.modules) - before
heavy = [m for m in new if m.split(".")[:2] in (["torch", "_inductor"], ["torch", "_dynamo"], ["torch", "export"])]
print(resolution.reason, seconds, sorted(heavy))
"""


def test_a_fresh_process_loads_without_the_compiler(toy, tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "weights.safetensors"
    save_file({name: tensor.detach() for name, tensor in toy.weights()["rollout"].items()}, path)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(toy.store.root), toy.key, str(path)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("local cache: hit")
    assert done.stdout.rstrip().endswith("[]")  # nothing of the compiler
    assert float(done.stdout.split()[-2]) < 5
    assert list(tmp_path.glob(f"{scratch.PREFIX}-*")) == []


def test_registry_is_per_content(toy, opened):
    assert sum(item is opened for item in binary_module._opened.values()) == 1
