"""Renders scenes as anti-aliased frames, from signed distances, at any frame size.

The world is a torus: what leaves at one edge enters at the other, so every motion goes on for ever.
Knows nothing of words or of training.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from model.training.world import BACKGROUND_PERIOD, BACKGROUNDS, COLOURS, FRAME, SHAPES, Scene, course

SHADE = 0.42  # how much darker the lower right of an object is; of the back of one that spins, the lower left
MOVING = ("night", "sea")  # backgrounds that change with time
# The city's towers: left edge and width of 128, top as a share of the height, grey level.
TOWERS = (
    (-6, 0.52, 26, 84),
    (18, 0.36, 18, 66),
    (38, 0.60, 24, 92),
    (64, 0.44, 16, 74),
    (82, 0.56, 26, 88),
    (106, 0.34, 20, 64),
)


def render(scene: Scene, frames: int, height: int = 128, width: int = 128, stride: int = 1) -> np.ndarray:
    """The clip as uint8 [frames, height, width, 3]; every stride-th frame of it."""
    return render_with_mask(scene, frames, height, width, stride)[0]


def render_with_mask(
    scene: Scene, frames: int, height: int = 128, width: int = 128, stride: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """The clip as uint8 [frames, height, width, 3] and the object's coverage as float32 [frames, height, width]."""
    scale = min(height, width) / FRAME
    way = course(scene, frames, (height / FRAME / scale, width / FRAME / scale), stride)
    middle, radius = way.centres * scale, (way.radii * scale).astype(np.float32)[:, None, None]
    reach = int(np.ceil(1.2 * radius.max())) + 3
    corner = np.floor(middle).astype(np.int64) - reach
    grid = np.arange(2 * reach + 1)
    x = corner[:, 0, None, None] + grid[None, None, :] + 0.5 - middle[:, 0, None, None]
    y = corner[:, 1, None, None] + grid[None, :, None] + 0.5 - middle[:, 1, None, None]
    x, y = (x / way.widths[:, None, None]).astype(np.float32), y.astype(np.float32)
    distance = signed_distance(SHAPES[scene.shape], x, y, radius)
    if (way.widths != 1).any():  # x is narrowed, so that a pixel across is more than one of the shape's own units
        distance = distance / np.maximum(np.hypot(*np.gradient(distance, axis=(1, 2))), 1)
    alpha = np.clip(0.5 - distance, 0, 1)[..., None]
    inside = np.clip(0.5 - (distance + 0.1 * radius + 0.6 * scale), 0, 1)[..., None]
    shade = np.clip(0.5 + (0.6 * x + 0.8 * y - 0.15 * radius), 0, 1)[..., None]
    fill = np.array(list(COLOURS.values())[scene.colour], dtype=np.float32)
    # A rim at half brightness keeps every colour readable on every background.
    paint = fill * (0.5 + 0.5 * inside * (1 - SHADE * shade))
    place = BACKGROUNDS[scene.background]
    video = np.stack([background(place, height, width, scene.phase + stride * i) for i in range(frames)])
    rows = ((corner[:, 1, None] + grid) % height)[:, :, None]
    columns = ((corner[:, 0, None] + grid) % width)[:, None, :]
    mask = np.zeros((frames, height, width), dtype=np.float32)
    index = np.arange(frames)[:, None, None]
    under = video[index, rows, columns].astype(np.float32)
    video[index, rows, columns] = (under * (1 - alpha) + paint * alpha + 0.5).astype(np.uint8)
    mask[index, rows, columns] = alpha[..., 0]
    return video, mask


def signed_distance(shape: str, x: np.ndarray, y: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Distance in pixels to the shape's outline, negative inside; y points down; float32 arrays."""
    match shape:
        case "circle":
            return np.hypot(x, y) - radius
        case "square":
            return np.maximum(np.abs(x), np.abs(y)) - 0.88 * radius
        case "triangle":
            side = 0.8660254 * np.abs(x) - 0.5 * y
            return np.maximum(side - 0.46 * radius, y - 0.80 * radius)
        case "star":
            return _star(x, y, 1.15 * radius, 0.50)
        case "ring":
            return np.abs(np.hypot(x, y) - 0.72 * radius) - 0.28 * radius
        case "heart":
            return _heart(x, y, radius)
        case "cross":
            long, short = np.maximum(np.abs(x), np.abs(y)), np.minimum(np.abs(x), np.abs(y))
            return np.maximum(long - radius, short - 0.36 * radius)
        case "moon":
            return np.maximum(np.hypot(x, y) - radius, 0.82 * radius - np.hypot(x - 0.5 * radius, y + 0.1 * radius))
    raise ValueError(f"unknown shape {shape!r}")


def _star(x: np.ndarray, y: np.ndarray, outer: np.ndarray, waist: float) -> np.ndarray:
    """A five-pointed star, one point up: the plane is folded into a tenth of it, then one edge is left."""
    sector = np.pi / 5
    angle = np.arctan2(x, -y)
    folded = np.abs((angle + sector) % (2 * sector) - sector)
    length = np.hypot(x, y)
    px, py = length * np.sin(folded), length * np.cos(folded)
    # The edge runs from the tip (0, outer) to the notch (waist·outer at half a sector).
    ex, ey = waist * outer * np.sin(sector), waist * outer * np.cos(sector) - outer
    norm = np.hypot(ex, ey)
    return ((py - outer) * ex - px * ey) / norm


def _heart(x: np.ndarray, y: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Two discs and the wedge that their outer tangents make below them."""
    ax, up = np.abs(x) / radius, 0.12 - y / radius
    across, above, lobe, tip = 0.46, 0.30, 0.56, -1.16
    cos, sin = _tangent(across, above - tip, lobe)
    disc = np.hypot(ax - across, up - above) - lobe
    wedge = ax * cos - (up - tip) * sin
    round_part = ((ax - across) * sin + (up - above) * cos >= 0) | (up > 0.45)
    return np.where(round_part, disc, wedge).astype(np.float32) * radius


def _tangent(dx: float, dy: float, r: float) -> tuple[float, float]:
    """(cos, sin) so that x·cos − y·sin = 0 runs through the origin and touches the disc of radius r at (dx, dy)."""
    reach = float(np.hypot(dx, dy))
    lean = float(np.arctan2(dx, dy)) + float(np.arcsin(min(1.0, r / reach)))
    return float(np.cos(lean)), float(np.sin(lean))


def background(name: str, height: int, width: int, frame: int = 0) -> np.ndarray:
    """The empty scene at a frame as uint8 [height, width, 3], read-only; muted, so that the object stands out."""
    return _background(name, height, width, frame % BACKGROUND_PERIOD if name in MOVING else 0)


@lru_cache(maxsize=1024)
def _background(name: str, height: int, width: int, frame: int) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    scale = min(height, width) / FRAME
    # Vertical positions stretch with the frame; things in it keep their shape.
    v, h = (y + 0.5) / height, (x + 0.5) / scale
    picture = _paint(name, v, h, width / scale, (y + 0.5) / scale, frame / BACKGROUND_PERIOD)
    out = np.clip(picture + 0.5, 0, 255).astype(np.uint8)
    out.setflags(write=False)
    return out


def _paint(name: str, v: np.ndarray, h: np.ndarray, span: float, down: np.ndarray, time: float) -> np.ndarray:
    """time: 0..1 through the period of what moves."""

    def ramp(top: tuple[int, int, int], bottom: tuple[int, int, int], u: np.ndarray = v) -> np.ndarray:
        return np.array(top, np.float32) * (1 - u[..., None]) + np.array(bottom, np.float32) * u[..., None]

    def over(under: np.ndarray, colour: tuple[int, int, int], coverage: np.ndarray) -> np.ndarray:
        a = np.clip(coverage, 0, 1)[..., None]
        return under * (1 - a) + np.array(colour, np.float32) * a

    def disc(cx: float, cy: float, r: float) -> np.ndarray:
        return 0.5 - (np.hypot(h - cx, down - cy) - r)

    def hill(level: float, swell: float, waves: float, shift: float) -> np.ndarray:
        edge = level + swell * np.sin(2 * np.pi * (waves * h / span + shift))
        return 0.5 + (v - edge) * FRAME

    match name:
        case "night":
            picture = ramp((8, 10, 36), (34, 34, 84))
            stars = (
                (14, 20),
                (38, 9),
                (60, 26),
                (22, 52),
                (112, 58),
                (84, 12),
                (8, 84),
                (50, 74),
                (98, 92),
                (120, 112),
            )
            for number, (sx, sy) in enumerate(stars):
                glow = 0.6 + 0.4 * np.sin(2 * np.pi * (time + 0.37 * number))
                picture = over(picture, (216, 216, 228), glow * np.clip(disc(sx / FRAME * span, sy, 1.7), 0, 1))
            return over(picture, (238, 228, 186), np.minimum(disc(span - 22, 22, 10), 1 - disc(span - 27, 19, 9)))
        case "sky":
            picture = ramp((126, 186, 232), (208, 230, 244))
            for cx, cy, r in (
                (22, 30, 9),
                (34, 27, 12),
                (47, 31, 8),
                (92, 96, 8),
                (104, 93, 11),
                (116, 97, 7),
            ):
                picture = over(picture, (236, 243, 248), disc(cx / FRAME * span, cy, r) / 2)
            return picture
        case "sunset":
            picture = ramp((88, 66, 122), (226, 150, 112))
            picture = over(picture, (246, 206, 140), disc(span / 2, 104, 17))
            return over(picture, (62, 46, 74), hill(0.83, 0.01, 2, 0.1))
        case "meadow":
            picture = over(ramp((178, 206, 220), (214, 226, 226)), (126, 152, 104), hill(0.5, 0.05, 1.5, 0.2))
            return over(picture, (98, 124, 80), hill(0.72, 0.04, 1, 0.6))
        case "desert":
            picture = over(ramp((206, 200, 190), (232, 220, 196)), (206, 176, 128), hill(0.52, 0.06, 1, 0.0))
            return over(picture, (178, 146, 104), hill(0.74, 0.05, 1.5, 0.4))
        case "snow":
            picture = over(ramp((140, 154, 172), (184, 196, 208)), (212, 220, 228), hill(0.48, 0.06, 1.5, 0.5))
            return over(picture, (230, 235, 240), hill(0.72, 0.04, 1, 0.2))
        case "sea":
            picture = over(ramp((172, 204, 214), (226, 234, 226)), (70, 138, 158), hill(0.44, 0.015, 3, time))
            picture = over(picture, (46, 110, 138), hill(0.60, 0.025, 2, 0.3 - time))
            return over(picture, (30, 82, 114), hill(0.80, 0.03, 2, 0.7 + time))
        case "city":
            picture = ramp((120, 128, 146), (182, 168, 164))
            for left, top, wide, tone in TOWERS:
                x0, x1 = (left * span / FRAME, (left + wide) * span / FRAME)
                inside = np.minimum(np.minimum(h - x0, x1 - h), (v - top) * FRAME) + 0.5
                picture = over(picture, (tone, tone, tone + 10), inside)
                for wx in np.arange(x0 + 4, x1 - 3, 8):
                    for wy in np.arange(top * FRAME + 6, FRAME - 6, 12):
                        window = np.minimum(2 - np.abs(h - wx), 2.5 - np.abs(v * FRAME - wy)) + 0.5
                        picture = over(picture, (222, 204, 150), 0.38 * np.clip(window, 0, 1))
            return picture
    raise ValueError(f"unknown background {name!r}")
