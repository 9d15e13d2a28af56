"""Sharded safetensors: the same tensors as from one file, no more memory than they take, every fault named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from model import shards
from model.binary import open_runner
from model.config import ConfigError
from model.weights import FILES, WeightsError, read_tensors
from tests.benchmarks import loading
from tests.fixtures.folders import make_folder
from tests.fixtures.shards import split

FIRST, LAST = "diffusion_pytorch_model-00001-of-00003.safetensors", "diffusion_pytorch_model-00003-of-00003.safetensors"

ELSEWHERE = "which is no safetensors file beside it"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "random")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("piece", [shards.PIECE, 96])  # 96 bytes: most tensors are read in many pieces
def test_shards_give_what_one_file_gives(folder: Path, monkeypatch: pytest.MonkeyPatch, dtype, piece: int) -> None:
    monkeypatch.setattr(shards, "PIECE", piece)
    for part in FILES:
        whole = {name: tensor.to(dtype) for name, tensor in load_file(folder / FILES[part]).items()}
        split(folder, part)
        told: list[tuple[int, int]] = []
        read = read_tensors(folder, part, dtype, progress=lambda *done, told=told: told.append(done))
        assert set(read) == set(whole)
        assert all(torch.equal(read[name], whole[name]) for name in whole)
        assert told == sorted(told)
        assert told[-1][0] == told[-1][1] == sum(f.stat().st_size for f in (folder / part).glob("*.safetensors"))
        assert len(told) > len(whole)


def test_a_sharded_model_runs(folder: Path) -> None:
    for part in FILES:
        split(folder, part)
    assert open_runner(folder, "eager", "float32").mode == "eager"


def reassign(index: Path, change) -> None:
    values = json.loads(index.read_text())
    change(values["weight_map"])
    index.write_text(json.dumps(values))


def moved(index: Path, place: str) -> None:
    reassign(index, lambda where: where.update({"proj_out.bias": place}))


def resave(index: Path, change) -> None:
    tensors = load_file(index.parent / FIRST)
    change(tensors)
    save_file(tensors, index.parent / FIRST)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda index: (index.parent / LAST).unlink(), f"transformer/{LAST} missing: 1 of the 3"),
        (lambda index: cut(index.parent / LAST), f"{LAST} is damaged, not downloaded whole"),
        (lambda index: (index.parent / LAST).write_bytes(b"version https://git-lfs"), f"{LAST} is damaged"),
        (lambda index: index.unlink(), "is missing, and so is diffusion_pytorch_model.safetensors.index.json"),
        (lambda index: index.write_text("{"), "index.json cannot be read as JSON"),
        (lambda index: index.write_text("{}"), "has no weight_map"),
        (lambda index: index.write_text('{"weight_map": {"a": 3}}'), "has no weight_map"),
        (lambda index: moved(index, "../vae/diffusion_pytorch_model.safetensors"), ELSEWHERE),
        (lambda index: moved(index, "/etc/passwd.safetensors"), ELSEWHERE),
        (lambda index: moved(index, "sub/x.safetensors"), ELSEWHERE),
        (lambda index: moved(index, "weights.bin"), ELSEWHERE),
        (lambda index: resave(index, lambda t: t.update(extra=torch.zeros(1))), "its index says: unexpected: extra"),
        (lambda index: resave(index, lambda t: t.popitem()), f"{FIRST} does not hold what its index says: missing: "),
        (lambda index: resave(index, lambda t: t.update({n: t[n].to(torch.float8_e4m3fn) for n in list(t)[:1]})),
         r"is stored as F8_E4M3; F64, F32, F16, BF16 are read"),
        (lambda index: resave(index, lambda t: t.update({n: t[n].long() for n in list(t)[:1]})), "is stored as I64;"),
        (lambda index: reassign(index, lambda where: where.pop("proj_out.bias")), "unexpected: proj_out.bias"),
    ],
)  # fmt: skip
def test_faults_are_named(folder: Path, spoil, words: str) -> None:
    spoil(split(folder, "transformer"))
    with pytest.raises(ConfigError, match=words):
        open_runner(folder, "eager")


def test_every_fault_is_in_the_details(folder: Path) -> None:
    file = folder / FILES["transformer"]
    tensors = load_file(file)
    lost = sorted(tensors)[:9]
    save_file({name: tensor for name, tensor in tensors.items() if name not in lost}, file)
    with pytest.raises(WeightsError) as caught:
        open_runner(folder, "eager")
    assert "and 5 more" in str(caught.value)
    assert sorted(caught.value.details) == [f"missing: {name}" for name in lost]


def test_names_out_of_files_are_printable_and_bounded(folder: Path) -> None:
    file, name = folder / FILES["transformer"], "\x1b[2J\n" + "x" * 5000
    tensors = load_file(file) | {f"{name}{index}": torch.zeros(1) for index in range(shards.MOST_DETAILS + 1)}
    save_file(tensors, file)
    with pytest.raises(WeightsError) as caught:
        open_runner(folder, "eager")
    said = [str(caught.value), *caught.value.details]
    assert all(line.isprintable() and len(line) <= 2000 for line in said)
    assert len(said) == shards.MOST_DETAILS + 2
    assert said[-1] == "and 1 more"


@pytest.mark.parametrize("dtype", loading.DTYPES)
def test_loading_takes_the_memory_of_the_weights(tmp_path: Path, dtype: str) -> None:
    loading.write_folder(tmp_path, loading.configured(145), loading.DTYPES[dtype])
    measured = loading.measure("load", tmp_path)
    assert 140e6 < measured["weights"] < 160e6
    assert measured["weights"] <= measured["peak"] * 1.01  # or it measured something else
    assert measured["peak"] <= 1.1 * measured["weights"]


def test_converting_takes_the_memory_of_a_few_tensors(tmp_path: Path) -> None:
    loading.write_checkpoint(tmp_path / "pt", loading.configured(145))
    measured = loading.measure("convert", tmp_path / "pt")
    assert measured["peak"] <= 0.6 * measured["weights"]
