"""Clips, captions, teacher forcing and the trainers: deterministic, resumable, and in the layout of diffusers."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import model
from model.training import captions, export, latents, train_transformer
from model.training.clips import background, render
from model.training.optim import MuonAdamW, orthogonalise
from model.training.teacher import Layout, forward
from model.training.train_transformer import HARDER, LAYOUTS, Generator, draw_sigmas, how_often
from model.training.world import ALL_PERIODS, ATTRIBUTES, BACKGROUNDS, MOTIONS, Scene, course, held_out, sample_scene

TINY = Path(model.__file__).parent / "tiny"


def some_scenes(n: int, seed: int = 0, split: str = "train") -> list[Scene]:
    rng = np.random.default_rng(seed)
    return [sample_scene(rng, split=split) for _ in range(n)]


def test_clips_are_deterministic_and_periodic() -> None:
    for scene in some_scenes(12):
        clip = render(scene, 5)
        assert clip.shape == (5, 128, 128, 3)
        assert clip.dtype == np.uint8
        assert (clip == render(scene, 5)).all()
        later = Scene(*scene.labels(), dx=scene.dx, dy=scene.dy, phase=scene.phase + ALL_PERIODS)
        assert np.abs(clip.astype(int) - render(later, 5).astype(int)).max() <= 1


def test_strided_clip_is_every_nth_frame() -> None:
    scene = some_scenes(1)[0]
    assert (render(scene, 3, stride=4) == render(scene, 9)[::4]).all()


@pytest.mark.parametrize("size", [(128, 128), (96, 160), (192, 128)])
def test_every_object_shows_in_every_frame(size: tuple[int, int]) -> None:
    for scene in some_scenes(16, seed=3):
        empty = background(BACKGROUNDS[scene.background], *size).astype(int)
        changed = (np.abs(render(scene, 9, *size, stride=8).astype(int) - empty) > 20).any(-1).mean((1, 2))
        seen = 0.4 if MOTIONS[scene.motion] == "spin" else 1  # from its edge, little more than its rim
        assert changed.min() > 0.005 * seen, scene.names()


def test_training_never_sees_held_out_combinations() -> None:
    assert not any(held_out(scene) for scene in some_scenes(200))
    assert all(held_out(scene) for scene in some_scenes(50, split="held_out"))


def scene_of(**values: str) -> Scene:
    """A big red circle moving left at night, but for what is named."""
    named = {"colour": "red", "shape": "circle", "size": "big", "motion": "left", "background": "night"} | values
    return Scene(*(ATTRIBUTES[name].index(value) for name, value in named.items()))


def test_the_world_is_as_rich_as_it_should_be() -> None:
    counts = {name: len(values) for name, values in ATTRIBUTES.items()}
    least = {"colour": 8, "shape": 8, "size": 3, "motion": 12, "background": 8}
    assert all(counts[name] >= number for name, number in least.items()), counts


ALONG = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}  # y grows downwards


@pytest.mark.parametrize("motion", MOTIONS)
def test_motions_are_what_they_are_called(motion: str) -> None:
    way = course(scene_of(motion=motion), 33)
    moved = way.centres - way.centres[0]
    along = [ALONG[word] for word in motion.split() if word in ALONG]
    if motion == "bounce":  # up and back to the ground, once
        assert moved[16, 1] < -20 < -1 < moved[32, 1]
        assert not moved[:, 0].any()
    elif motion == "orbit":  # always as far from a place that is not its own
        middle = course(scene_of(motion=motion), 48).centres.mean(0)
        away = np.linalg.norm(way.centres - middle, axis=1)
        assert away.min() > 10
        assert np.ptp(away) < 1e-6
    else:
        assert tuple(np.sign(moved[-1])) == tuple(np.sum([(0, 0), *along], axis=0))
    assert np.sign(way.radii[32] - way.radii[0]) == (motion == "grow") - (motion == "shrink")
    assert (np.min(way.widths) < 0) == (motion == "spin")
    assert np.abs(way.widths).min() >= 0.2


def test_more_of_what_spins_and_single_frames_of_its_front() -> None:
    drawn = argparse.Namespace(count=60, spinning=20, any_phase=True)
    clips = latents.draw_scenes(np.random.default_rng(0), argparse.Namespace(**vars(drawn), frames=45))
    images = latents.draw_scenes(np.random.default_rng(0), argparse.Namespace(**vars(drawn), frames=1))
    assert {MOTIONS[scene.motion] for scene in clips[60:]} == {"spin"}
    for moving, single in zip(clips, images, strict=True):
        assert moving.labels() == single.labels()
        if MOTIONS[moving.motion] == "spin":
            assert course(single, 1).widths == pytest.approx(1)
        else:
            assert moving == single
    assert min(course(scene, 1).widths[0] for scene in clips[60:]) < 0


def test_no_wording_means_two_values() -> None:
    for name, values in captions.WORDS.items():
        assert tuple(values) == ATTRIBUTES[name]
        wordings = [option for options in values.values() for option in options]
        assert len(set(wordings)) == len(wordings), name


def test_captions_name_every_attribute() -> None:
    scene = scene_of(motion="bounce")
    assert captions.canonical(scene) == "a big red circle bouncing at night"
    rng = np.random.default_rng(0)
    texts = {captions.free(scene, rng, missing=0.0) for _ in range(200)}
    assert len(texts) > 50
    fillers = set(captions.FILLERS)  # which may be unknown words here
    for text in texts:
        said = set(text.replace(",", "").split())
        for name, value in scene.names().items():
            options = [set(option.split()) - fillers for option in captions.WORDS[name][value]]
            assert any(option <= said for option in options), (text, name)


def test_tokenizer_reads_free_typing(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    captions.write_tokenizer(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    plain = tokenizer("a big red ball bouncing at night")["input_ids"]
    assert plain == tokenizer("A BIG red ball, bouncing at night!")["input_ids"]
    assert plain[-1] == tokenizer.eos_token_id
    assert tokenizer("a zebra")["input_ids"][1] == tokenizer.unk_token_id
    assert tokenizer.pad_token_id == 0
    ids, mask = captions.encode(captions.build_tokenizer(), ["a big red ball bouncing at night"])
    assert ids.shape == mask.shape == (1, captions.TEXT_LENGTH)
    assert ids[0, : len(plain)].tolist() == plain
    assert not ids[0, mask[0] == 0].any()


def test_teacher_forcing_equals_the_masked_forward() -> None:
    torch.manual_seed(0)
    transformer = Generator().transformer
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
        for layout in (*LAYOUTS.values(), Layout(range(3), range(2, 4), 2)):
            frames = 3 * len(layout.numbers())
            x, t, text = torch.randn(1, 16, frames, 8, 8), torch.rand(1, frames) * 1000, torch.randn(1, 32, 128)
            whole = transformer(x, t, text, layout.frame_positions(3), layout.visible(3))
            assert torch.allclose(forward(transformer, x, t, text, layout, 3), whole, atol=1e-5)


def test_what_is_hard_is_drawn_oftener() -> None:
    names = {value for values in ATTRIBUTES.values() for value in values}
    assert set(HARDER) <= names
    assert all(odds > 1 for odds in HARDER.values())
    scenes = some_scenes(256)
    assert all(any(value in scene.names().values() for scene in scenes) for value in HARDER)
    for scene in scenes:
        assert how_often(scene) == math.prod(HARDER.get(value, 1.0) for value in scene.names().values())


def test_noise_levels_are_mostly_the_samplers() -> None:
    sigmas = draw_sigmas(np.random.default_rng(0), (2000,))
    own = torch.tensor([1.0, 0.8182, 0.6, 0.3333])
    share = ((sigmas[:, None] - own).abs() < 1e-3).any(1).float().mean()
    assert 0.75 < share < 0.86
    assert sigmas.min() > 0
    assert sigmas.max() <= 1


def test_muon_updates_are_orthogonal_and_learn() -> None:
    torch.manual_seed(0)
    update = orthogonalise(torch.randn(3, 20, 48), 5).float()
    assert torch.linalg.svdvals(update).sub(1).abs().max() < 0.4
    layer, wanted = nn.Linear(8, 8), 0.2 * torch.randn(8, 8)
    optimizer = MuonAdamW(layer.named_parameters(), 0.05)
    x = torch.randn(64, 8)
    losses = []
    for step in range(150):
        optimizer.set_progress(step / 150, hold=0.3)
        loss = (layer(x) - x @ wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]


def _train(tmp_path: Path, name: str, *steps: int) -> dict[str, torch.Tensor]:
    """Run the video stage to each of `steps` in turn; schedule lengths are equal, only the stops differ."""
    parser = argparse.ArgumentParser()
    train_transformer.add_arguments(parser)
    for stop in steps:
        options = ["--stage", "video", "--data", str(tmp_path), "--run", str(tmp_path / name), "--batch", "2"]
        options += ["--video-batch", "1", "--threads", "1", "--model", str(tmp_path / "folder"), "--steps", "3"]
        train_transformer.run(parser.parse_args([*options, "--stop", str(stop)]))
    return torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["average"]


def test_training_is_reproducible_and_resumable(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    for name, frames in (("images", 1), ("starts", 12), ("middles", 12)):
        shape = (16, frames, 16, 16)
        clips = torch.randn(4, *shape, generator=generator).half()
        places = torch.full((4, frames, 16, 16), 255, dtype=torch.uint8)
        latents.save(tmp_path / f"{name}.pt", latents.LatentSet(clips, some_scenes(4), places))
    whole, halves = _train(tmp_path, "whole", 3), _train(tmp_path, "halves", 2, 3)
    assert all(torch.equal(value, halves[name]) for name, value in whole.items())


def test_embedded_model_is_small_and_in_the_layout_of_diffusers() -> None:
    diffusers = pytest.importorskip("diffusers")
    transformers = pytest.importorskip("transformers")
    assert export.folder_bytes(TINY) <= 15_000_000
    for part, kind in (("transformer", diffusers.WanTransformer3DModel), ("vae", diffusers.AutoencoderKLWan)):
        weights = load_file(TINY / part / "diffusion_pytorch_model.safetensors")
        assert {value.dtype for value in weights.values()} == {torch.float16}
        kind.from_config(kind.load_config(TINY / part)).load_state_dict(weights)
    _, report = transformers.UMT5EncoderModel.from_pretrained(TINY / "text_encoder", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
