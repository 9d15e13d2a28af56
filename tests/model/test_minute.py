"""What is measured over a minute: right readings at both ends, the edge's sharpness, jumps where blocks meet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import model
from model.training.clips import render, render_with_mask
from model.training.minute import BLOCK, ENDS, boundary_change, edge_energy, object_mask, score
from model.training.world import ATTRIBUTES, Scene, sample_scene

JUDGE = Path(model.__file__).parent / "tiny/judge"
FRAMES = (2 * ENDS + 1) * BLOCK - 3


def blurred(frames: np.ndarray) -> np.ndarray:
    video = F.pad(torch.from_numpy(frames).permute(0, 3, 1, 2).float(), (1, 1, 1, 1), mode="replicate")
    return F.avg_pool2d(video, 3, 1).permute(0, 2, 3, 1).round().byte().numpy()


def other_colour(frames: np.ndarray) -> np.ndarray:
    return frames[..., ::-1]


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    rng = np.random.default_rng(8)
    return [Scene(*sample_scene(rng).labels()) for _ in range(4)]


def test_truth_stays_as_it_was(scenes: list[Scene]) -> None:
    result = score(JUDGE, scenes, (render(scene, FRAMES) for scene in scenes))
    assert result["first"] == result["last"] == dict.fromkeys(ATTRIBUTES, 100.0)
    assert result["edge"] == pytest.approx(1, abs=0.1)
    assert 0.9 < result["jump"] < 1.1


def test_every_kind_of_decay_shows(scenes: list[Scene]) -> None:
    """The last blocks are blurred and of other colours, and at each block's start the picture flashes."""

    def worn() -> list[np.ndarray]:
        videos = [render(scene, FRAMES).copy() for scene in scenes]
        for video in videos:
            video[-ENDS * BLOCK :] = other_colour(blurred(video[-ENDS * BLOCK :]))
            video[BLOCK - 3 :: BLOCK] = 255 - video[BLOCK - 3 :: BLOCK]
        return videos

    result = score(JUDGE, scenes, worn())
    assert result["last"]["colour"] < result["first"]["colour"] or result["last"]["background"] < 100
    assert result["edge"] < 0.7
    assert result["jump"] > 2


def test_the_object_is_told_from_the_scene() -> None:
    rng = np.random.default_rng(3)
    for _ in range(12):
        scene = sample_scene(rng, any_phase=True)
        video, mask = render_with_mask(scene, 9)
        found, there = object_mask(video, scene), mask > 0.9
        assert (found & ~(mask > 0)).mean() < 0.002, scene.names()
        assert (found & there).sum() > 0.4 * there.sum(), scene.names()  # rims and fills may look like the scene


def test_changes_where_blocks_meet() -> None:
    video = np.zeros((BLOCK * 3 - 3, 4, 4, 3), np.uint8)
    video += np.arange(len(video), dtype=np.uint8)[:, None, None, None]
    assert boundary_change(video) == (1.0, 1.0)
    video[BLOCK - 3 :] += 10  # the second block starts at frame 9
    assert boundary_change(video) == (6.0, 1.0)


def test_a_video_without_object_has_no_edge() -> None:
    scene = Scene(0, 0, 0, 0, 1)
    assert edge_energy(np.broadcast_to(render(scene, 1)[:, :1, :1], (2, 32, 32, 3)).copy(), scene) >= 0
