"""What people type, turned into a Request, and a Request turned into settings, file names and links.

Values come from a form, an address or an uploaded file, so nothing about them is taken for granted. What a
prompt may contain and which sizes a model can draw is for the pipeline to say; how a form looks, for the page.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import asdict
from typing import Any
from urllib.parse import urlencode

from ..config import ModelConfig
from ..generator import MAX_STEPS
from ..pipeline import MAX_SEED, Request, RequestError


def read_request(
    prompt: Any, seed: Any, blocks: Any, size: Any, steps: Any, *, max_blocks: int, default_size: tuple[int, int]
) -> Request:
    """A request from untyped values; an empty seed draws one, an empty size takes the default.

    Raises RequestError, in words for a visitor. The prompt is only checked for being text.
    """
    if not isinstance(prompt, str):
        raise RequestError("The prompt must be text.")
    height, width = default_size if size in (None, "") else read_size(size)
    return Request(
        prompt=prompt,
        seed=random_seed() if seed in (None, "") else whole_number("seed", seed, 0, MAX_SEED),
        blocks=whole_number("number of blocks", blocks, 1, max_blocks),
        height=height,
        width=width,
        steps=whole_number("number of steps", steps, 1, MAX_STEPS),
    )


def whole_number(name: str, value: Any, low: int, high: int) -> int:
    """An int from low to high, out of an int, a float without fraction, or a string of digits.

    Raises RequestError naming `name` and the range. The value itself is not repeated: it may be anything.
    """
    number = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif (isinstance(value, float) and value.is_integer()) or (
        isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,20}", value.strip())
    ):
        number = int(value)
    if number is None or not low <= number <= high:
        raise RequestError(f"The {name} must be a whole number from {low} to {high}.")
    return number


def read_size(size: Any) -> tuple[int, int]:
    """(height, width) from "128x128", "128×128" or [128, 128]. Raises RequestError."""
    if isinstance(size, (list, tuple)):
        size = "x".join(str(side) for side in size[:3])
    match = re.fullmatch(r"\s*([0-9]{1,5})\s*[xX×]\s*([0-9]{1,5})\s*", size) if isinstance(size, str) else None
    if match is None:
        raise RequestError("The size must be height x width in pixels, such as 128x128.")
    return int(match[1]), int(match[2])


def size_text(height: int, width: int) -> str:
    """ "128x96": height first, as read_size reads it."""
    return f"{height}x{width}"


def random_seed() -> int:
    """Short enough to be read out and typed again."""
    return secrets.randbelow(2**31)


def frames_in(blocks: int, config: ModelConfig) -> int:
    """Video frames of that many blocks."""
    return blocks * config.block_video_frames - config.first_frames_hidden


def settings_of(request: Request) -> dict[str, Any]:
    """What has to be typed to get the same video again."""
    return {
        "prompt": request.prompt,
        "seed": request.seed,
        "blocks": request.blocks,
        "size": size_text(request.height, request.width),
        "steps": request.steps,
        **({} if request.limits is None else asdict(request.limits)),
    }


def link_of(request: Request) -> str:
    """The query part of an address that opens the page with these settings."""
    return "?" + urlencode(settings_of(request))


def file_name(request: Request) -> str:
    """A name any file system takes, with the prompt's first words and the seed: onegraph-a-red-ball-seed7.mp4."""
    words = "-".join(re.findall(r"[a-z0-9]+", request.prompt.lower())[:6])[:40].strip("-")
    return "-".join(part for part in ("onegraph", words, f"seed{request.seed}") if part) + ".mp4"
