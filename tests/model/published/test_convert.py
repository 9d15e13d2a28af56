"""`python -m model convert`: what comes out is what diffusers' own conversion gives; whatever is wrong is named."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLWan
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers, convert_wan_vae_to_diffusers
from safetensors.torch import load_file
from torch import Tensor

from compile_cache.errors import CompileCacheError
from model.__main__ import main
from model.config import ConfigError, read_config
from model.published.convert import convert
from model.published.presets import by_name
from model.published.wan_names import original_names, vae_modules
from tests.fixtures.checkpoints import LORA_RANK, lora_tensors, save, wan_tensors
from tests.fixtures.folders import make_folder

EMA, RAW = 1, 2  # seeds
QUERY = "blocks.1.self_attn.q"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose configurations the checkpoints here have; its VAE is of the 2.1 form."""
    folder = make_folder(tmp_path_factory.mktemp("small") / "model")
    plain = {"base_dim": 8, "dim_mult": [1, 2, 2], "num_res_blocks": 1, "temperal_downsample": [False, True]}
    (folder / "vae" / "config.json").write_text(json.dumps(plain))
    return folder


def diffusers_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return convert_wan_transformer_to_diffusers(dict(tensors))


@pytest.mark.parametrize(
    ("which", "sections", "seed"),
    [
        (None, {"generator_ema": EMA, "generator": RAW}, EMA),
        ("raw", {"generator_ema": EMA, "generator": RAW}, RAW),
        ("ema", {"generator_ema": EMA, "generator": RAW}, EMA),
        (None, {"generator": RAW, "critic": EMA}, RAW),
        (None, {"model": RAW}, RAW),
    ],
)
def test_the_section_asked_for_is_written(small: Path, tmp_path: Path, which, sections, seed: int) -> None:
    path = save(tmp_path / "in.pt", **{key: wan_tensors(small, seed) for key, seed in sections.items()})
    made = convert(path, tmp_path / "out", which=which, model=small, dtype=torch.float32)
    written = load_file(tmp_path / "out/transformer/diffusion_pytorch_model.safetensors")
    expected = diffusers_names(wan_tensors(small, seed))
    assert set(written) == set(expected)
    assert all(torch.equal(written[name], expected[name]) for name in expected)
    assert sections[made.section] == seed
    assert (made.part, made.tensors) == ("transformer", len(expected))
    ours, theirs = (read_config(small).transformer, json.loads((made.folder / "config.json").read_text()))
    assert theirs["num_layers"] == ours.num_layers


def test_an_empty_moving_average_is_none(small: Path, tmp_path: Path) -> None:
    path = save(tmp_path / "in.pt", generator_ema={}, generator=wan_tensors(small))
    assert convert(path, tmp_path / "out", model=small).section == "generator"
    with pytest.raises(CompileCacheError, match="has none of generator_ema"):
        convert(path, tmp_path / "other", which="ema", model=small)


def test_sampling_that_is_there_stays(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where the weights are in place, it is too: whatever ends the command, no folder has only half."""
    path, file = save(tmp_path / "in.pt", generator=wan_tensors(small)), tmp_path / "out" / "onegraph.json"
    rename, there = os.rename, []
    monkeypatch.setattr(os, "rename", lambda *places: (there.append(file.is_file()), rename(*places)))
    made = convert(path, tmp_path / "out", model=small, preset=by_name("longlive"))
    assert there == [True]
    assert json.loads(file.read_text()) == by_name("longlive").onegraph()
    assert sorted(f.name for f in made.folder.iterdir()) == ["config.json", "diffusion_pytorch_model.safetensors"]
    file.write_text("{}")
    shutil.rmtree(made.folder)
    convert(path, tmp_path / "out", model=small, preset=by_name("longlive"))
    assert file.read_text() == "{}"


def test_bfloat16_shards_and_wrapped_names(small: Path, tmp_path: Path) -> None:
    tensors = wan_tensors(small)
    wrapped = {f"_fsdp_wrapped_module.model._orig_mod.{name}": tensor for name, tensor in tensors.items()}
    torch.save({"generator": wrapped}, tmp_path / "in.pt")
    told: list[tuple[int, int]] = []
    made = convert(tmp_path / "in.pt", tmp_path / "out", model=small, shard_bytes=50_000,
                   progress=lambda *done: told.append(done))  # fmt: skip
    index = json.loads((made.folder / "diffusion_pytorch_model.safetensors.index.json").read_text())
    shards = {name: load_file(made.folder / name) for name in set(index["weight_map"].values())}
    assert len(shards) > 2
    expected = diffusers_names(tensors)
    assert set(index["weight_map"]) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(shards[index["weight_map"][name]][name], tensor.bfloat16()), name
    assert sorted(told) == told
    assert told[-1] == (made.bytes, made.bytes) == (index["metadata"]["total_size"],) * 2


@pytest.mark.parametrize(
    ("alpha", "scale", "prefix"), [(None, 1.0, ""), (2.0, 2.0 / LORA_RANK, "model._fsdp_wrapped_module.")]
)
def test_an_adapter_is_merged(small: Path, tmp_path: Path, alpha, scale: float, prefix: str) -> None:
    base = wan_tensors(small)
    lora = lora_tensors(base)
    wrapped = {f"{prefix}{name}": tensor for name, tensor in lora.items()}
    torch.save({"generator_lora": wrapped}, tmp_path / "lora.pt")
    made = convert(save(tmp_path / "base.pt", generator=base), tmp_path / "out", lora=tmp_path / "lora.pt",
                   lora_alpha=alpha, model=small, dtype=torch.float32)  # fmt: skip
    written = load_file(made.folder / "diffusion_pytorch_model.safetensors")
    expected = diffusers_names(base)
    adapted = diffusers_names({name: name for name in base})
    for name, wan in adapted.items():
        down = lora.get(f"base_model.model.{wan.removesuffix('.weight')}.lora_A.weight")
        up = lora.get(f"base_model.model.{wan.removesuffix('.weight')}.lora_B.weight")
        merged = expected[name] if down is None else expected[name] + scale * up @ down
        torch.testing.assert_close(written[name], merged, atol=1e-5, rtol=1e-5)
    assert made.adapted == 2 * 10


def test_the_vae_is_told_from_a_transformer(small: Path, tmp_path: Path) -> None:
    with torch.device("meta"):
        theirs = AutoencoderKLWan.from_config(json.loads((small / "vae/config.json").read_text())).state_dict()
    names = original_names(theirs, vae_modules(read_config(small).vae))
    tensors = {wan: torch.randn(theirs[ours].shape) for wan, ours in names.items()}
    torch.save(tensors, tmp_path / "vae.pth")
    made = convert(tmp_path / "vae.pth", tmp_path / "out", model=small, dtype=torch.float32)
    assert made.folder == tmp_path / "out" / "vae"
    written = load_file(made.folder / "diffusion_pytorch_model.safetensors")
    assert set(written) == set(theirs)
    assert torch.equal(written["decoder.conv_in.weight"], tensors["decoder.conv1.weight"])
    # The library's conversion is written for the published depth; what it knows at this one must agree.
    known = {name: t for name, t in convert_wan_vae_to_diffusers(tensors).items() if name.startswith("encoder")}
    assert all(torch.equal(written[name], tensor) for name, tensor in known.items())


class Code:
    """Runs when it is unpickled without care."""

    def __reduce__(self):
        return (print, ("this must never be seen",))


def broken(change):
    def write(path: Path, tensors: dict[str, Tensor]) -> None:
        change(tensors)
        save(path, generator=tensors)

    return write


def truncated(path: Path, tensors: dict[str, Tensor]) -> None:
    save(path, generator=tensors)
    path.write_bytes(path.read_bytes()[:-5000])


def malformed(path: Path, code: bytes) -> None:
    """An archive as torch.save's whose pickle is none."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (("data.pkl", code), ("version", b"3\n"), ("byteorder", b"little")):
            archive.writestr(f"archive/{name}", data)


def resized(t: dict[str, Tensor], name: str) -> None:
    t[name] = t[name][:-1]


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path, t: torch.save({"generator": t, "extra": Code()}, path), "could run code"),
        (lambda path, t: torch.save({"optimizer": {"state": {}}}, path), "has none of generator_ema.*it has optimizer"),
        (lambda path, t: torch.save(list(t.values()), path), "must hold named tensors"),
        (lambda path, t: torch.save({"generator": t | {"step": 3}}, path), "step is no tensor but int"),
        (lambda path, t: torch.save(t, path, _use_new_zipfile_serialization=False), "of another format"),
        (lambda path, t: path.write_bytes(b"<html>"), "of another format"),
        (lambda path, t: None, "is missing"),
        (truncated, "not downloaded whole"),
        *[
            (lambda path, t, code=code: malformed(path, code), "is damaged or no checkpoint|could run code|must hold")
            for code in (b"", b".", b"garbage", b"\x80\x02(t.", b"\x80\x02h\x05.", b"\x80\x02}K\x01a.", b"\x80\x02Q.")
        ],
        (broken(lambda t: t.pop("blocks.0.norm3.weight")), "missing: blocks.0.norm3.weight"),
        (broken(lambda t: t.update({"blocks.0.cross_attn.k_img.weight": torch.zeros(1)})), "unexpected: .*k_img"),
        (broken(lambda t: resized(t, "blocks.1.ffn.0.bias")), r"blocks.1.ffn.0.bias is \[63\], not \[64\]"),
        (broken(lambda t: resized(t, "patch_embedding.weight")), "another architecture.*width 47, not 48"),
        (broken(lambda t: [t.pop(n) for n in list(t) if n.startswith("blocks.1.")]), "blocks 1, not 2"),
        (broken(lambda t: t.pop("patch_embedding.weight")), "no Wan transformer"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_written(small: Path, tmp_path: Path, capfd, write, words: str) -> None:
    write(tmp_path / "in.pt", wan_tensors(small))
    with pytest.raises((CompileCacheError, ConfigError), match=words):
        convert(tmp_path / "in.pt", tmp_path / "out", model=small)
    assert not list(tmp_path.glob("out/*"))
    assert "never be seen" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, a, b: t.pop(b), f"{QUERY}.lora_B.weight is missing"),
        (lambda t, a, b: t.update({a: t[a][:, :-1]}), r"its weight \[48, 48\]"),
        (lambda t, a, b: t.update({a: t[a][:-1]}), "lora_A of rank 3, lora_B of 4"),
        (lambda t, a, b: t.update({f"base_model.model.blocks.9.q.lora_{s}.weight": torch.zeros(1, 1) for s in "AB"}),
         "adapts blocks.9.q, which is not there"),
        (lambda t, a, b: t.update({"alpha": torch.ones(())}), "alpha is no part of an adapter"),
        (lambda t, a, b: t.clear(), "holds no adapter"),
    ],
)  # fmt: skip
def test_an_adapter_that_does_not_fit_is_named(small: Path, tmp_path: Path, change, words: str) -> None:
    base = wan_tensors(small)
    lora = lora_tensors(base)
    change(lora, *(f"base_model.model.{QUERY}.lora_{side}.weight" for side in "AB"))
    torch.save({"generator_lora": lora}, tmp_path / "lora.pt")
    with pytest.raises(CompileCacheError, match=words):
        convert(save(tmp_path / "base.pt", generator=base), tmp_path / "out", lora=tmp_path / "lora.pt", model=small)
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_said_before_writing(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "in.pt", generator=wan_tensors(small))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(1 << 30, 1 << 30, 100_000))
    with pytest.raises(CompileCacheError, match=r"are needed in .* but only 97.7 KB are free there"):
        convert(path, tmp_path / "out" / "below", model=small)
    assert not (tmp_path / "out").exists()


def test_the_command_line(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = wan_tensors(small)
    command = ["convert", str(save(tmp_path / "in.pt", generator_ema=tensors)), str(tmp_path / "out")]
    assert main([*command, "--json"]) == 1  # of another architecture than the default
    assert "width 48, not 1536" in json.loads(capsys.readouterr().out)["error"]
    assert main([*command, "--like", str(small), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["section"], done["tensors"]) == ("generator_ema", len(tensors))
    assert main([*command, "--like", str(small)]) == 1
    assert "is there already" in capsys.readouterr().err
    names = sorted(name for name in tensors if name.startswith("blocks.0."))[:10]
    save(tmp_path / "in.pt", generator={name: tensor for name, tensor in tensors.items() if name not in names})
    assert main([*command[:2], str(tmp_path / "other"), "--like", str(small)]) == 1
    said = capsys.readouterr().err
    assert all(f"missing: {name}\n" in said for name in names)  # not a few of them: every one
