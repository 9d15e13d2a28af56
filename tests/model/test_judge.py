"""The judge reads rendered truth nearly without fault, and only chance agrees with shuffled captions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import model
from model.training.clips import render
from model.training.evaluate import score_table, scores
from model.training.judge import SPAN, accuracy, load_judge, read
from model.training.world import ATTRIBUTES, sample_scene

JUDGE = Path(model.__file__).parent / "tiny/judge"
BAR = 0.98


@pytest.fixture(scope="module")
def judge() -> torch.nn.Module:
    return load_judge(JUDGE)


def test_reads_rendered_truth(judge: torch.nn.Module) -> None:
    shares = accuracy(judge, 256, seed=11)
    assert min(shares.values()) >= BAR, shares


def test_reads_through_the_faults_of_generated_frames(judge: torch.nn.Module) -> None:
    shares = accuracy(judge, 128, seed=12, spoiled=True)
    assert min(shares.values()) >= 0.9, shares


def test_agrees_with_shuffled_captions_by_chance_only(judge: torch.nn.Module) -> None:
    rng = np.random.default_rng(5)
    scenes = [sample_scene(rng) for _ in range(64)]
    others = [sample_scene(rng) for _ in range(64)]
    result = scores(JUDGE, others, [render(scene, SPAN) for scene in scenes])
    for name, values in ATTRIBUTES.items():
        assert result["scores"][name] < 100 * (1 / len(values) + 0.2), result["scores"]
    assert "read as" in score_table(result)


def test_reads_long_and_large_videos(judge: torch.nn.Module) -> None:
    scene = sample_scene(np.random.default_rng(6))
    for frames, height, width in ((81, 128, 128), (45, 192, 192)):
        seen = read(judge, render(scene, frames, height, width))
        guesses = tuple(int(seen[name].argmax()) for name in ATTRIBUTES)
        assert guesses == scene.labels()


def test_refuses_short_videos(judge: torch.nn.Module) -> None:
    with pytest.raises(ValueError, match="at least 33 frames"):
        read(judge, np.zeros((32, 128, 128, 3), np.uint8))
