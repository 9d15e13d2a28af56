"""The embedded model's world: which colours, shapes, sizes, motions and backgrounds exist, and scenes of them.

A scene is five attributes plus where and when it starts. Positions are in units of a 128 pixel frame,
times in frames at 16 fps. Knows nothing of pixels (clips.py) or of words (captions.py).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (222, 34, 42),
    "orange": (255, 138, 8),
    "yellow": (255, 226, 32),
    "green": (28, 172, 62),
    "blue": (36, 84, 236),
    "purple": (142, 48, 204),
    "pink": (255, 122, 196),
    "white": (250, 250, 250),
}
SHAPES = ("circle", "square", "triangle", "star", "ring", "heart", "cross", "moon")
# Radii for a 128 pixel frame; neighbours differ by a factor of about 1.5, so that a size reads at a glance.
SIZES: dict[str, float] = {"small": 14.0, "medium": 21.5, "big": 33.0}
MOTIONS = (
    *("left", "right", "up", "down", "up left", "up right", "down left", "down right"),
    *("bounce", "orbit", "grow", "shrink", "spin", "still"),
)
BACKGROUNDS = ("night", "sky", "sunset", "meadow", "desert", "snow", "sea", "city")

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "colour": tuple(COLOURS),
    "shape": SHAPES,
    "size": tuple(SIZES),
    "motion": MOTIONS,
    "background": BACKGROUNDS,
}

FRAME = 128.0  # the frame side that positions and radii are given for
SPEED = 2.0  # pixels per frame and axis: one latent cell (8 px) per latent frame (4 frames)
BOUNCE_PERIOD, BOUNCE_HEIGHT, FLOOR = 32, 40.0, 120.0
ORBIT_PERIOD, ORBIT_RADIUS = 48, 26.0
GROWTH_PERIOD, GROWTH_FRAMES, GROWTH = 48, 36, 0.4  # grows from 60 to 140 % in 36 frames, and is back within 12
SPIN_PERIOD, THIN = 64, 0.2  # spins like a coin, and is never seen narrower than a fifth
BACKGROUND_PERIOD = 64  # of waves and of twinkling stars
JITTER = 5.0  # the start is this near to the centre, in either direction
HELD_OUT_SHARE = 0.1
ALL_PERIODS = 192  # everything repeats after this many frames on a square frame


@dataclass(frozen=True)
class Scene:
    """One clip: an index into each of ATTRIBUTES, the start position's offset (pixels) and phase (frames)."""

    colour: int
    shape: int
    size: int
    motion: int
    background: int
    dx: float = 0.0
    dy: float = 0.0
    phase: int = 0

    def labels(self) -> tuple[int, int, int, int, int]:
        """The attribute indices in the order of ATTRIBUTES."""
        return self.colour, self.shape, self.size, self.motion, self.background

    def names(self) -> dict[str, str]:
        """Attribute name -> value name, e.g. {"colour": "red", ...}."""
        return {name: values[i] for (name, values), i in zip(ATTRIBUTES.items(), self.labels(), strict=True)}

    @property
    def radius(self) -> float:
        """Radius in pixels of a 128 pixel frame."""
        return tuple(SIZES.values())[self.size]


def held_out(scene: Scene) -> bool:
    """Whether the scene's combination of attributes is kept for judging and never trained on."""
    digest = hashlib.sha256(repr(scene.labels()).encode()).digest()
    return digest[0] < 256 * HELD_OUT_SHARE


def sample_scene(
    rng: np.random.Generator, *, split: str = "train", any_phase: bool = False, motion: str | None = None
) -> Scene:
    """A random scene; split is "train", "held_out" or "all"; any_phase starts it at any moment of its motion; one with
    that motion, if any is named."""
    while True:
        labels = [int(rng.integers(len(values))) for values in ATTRIBUTES.values()]
        dx, dy = rng.uniform(-JITTER, JITTER, 2)
        phase = int(rng.integers(ALL_PERIODS)) if any_phase else 0
        scene = Scene(*labels, dx=float(dx), dy=float(dy), phase=phase)
        if motion is not None and MOTIONS[scene.motion] != motion:
            continue
        if split == "all" or held_out(scene) == (split == "held_out"):
            return scene


@dataclass(frozen=True)
class Course:
    """Where an object is in each frame, for a frame of 128 pixels' height."""

    centres: np.ndarray  # [frames, 2], (x, y), unwrapped
    radii: np.ndarray  # [frames], pixels
    widths: np.ndarray  # [frames], shares of the full width; negative where the back shows


def course(scene: Scene, frames: int, aspect: tuple[float, float] = (1.0, 1.0), stride: int = 1) -> Course:
    """The object's way through `frames` frames (every stride-th) of 128·aspect pixels (height, width)."""
    t = scene.phase + stride * np.arange(frames, dtype=np.float64)
    mid_x, mid_y = FRAME * aspect[1] / 2 + scene.dx, FRAME * aspect[0] / 2 + scene.dy
    x, y = np.full_like(t, mid_x), np.full_like(t, mid_y)
    radii, widths = np.full_like(t, scene.radius), np.ones_like(t)
    motion = MOTIONS[scene.motion]
    directions = motion.split()
    x += SPEED * t * (("right" in directions) - ("left" in directions))
    y += SPEED * t * (("down" in directions) - ("up" in directions))
    match motion:
        case "bounce":
            u = (t / BOUNCE_PERIOD) % 1.0
            floor = FLOOR + FRAME * (aspect[0] - 1)
            y = floor - scene.radius - BOUNCE_HEIGHT * 4 * u * (1 - u) + scene.dy * 0.5
        case "orbit":
            turn = 2 * math.pi * t / ORBIT_PERIOD
            x, y = mid_x + ORBIT_RADIUS * np.sin(turn), mid_y - ORBIT_RADIUS * np.cos(turn)
        case "grow":
            radii *= 1 + GROWTH * _sawtooth(t)
        case "shrink":
            radii *= 1 - GROWTH * _sawtooth(t)
        case "spin":
            facing = np.cos(2 * math.pi * t / SPIN_PERIOD)
            widths = np.copysign(np.maximum(np.abs(facing), THIN), facing)
    return Course(np.stack([x, y], axis=1), radii, widths)


def _sawtooth(t: np.ndarray) -> np.ndarray:
    """From −1 to 1 in GROWTH_FRAMES frames, and back in the rest of the period."""
    return np.interp(t % GROWTH_PERIOD, [0, GROWTH_FRAMES, GROWTH_PERIOD], [-1.0, 1.0, -1.0])
