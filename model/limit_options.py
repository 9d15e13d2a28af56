"""Command-line options for the rollout's rules, where a command makes videos.

They are known before torch is loaded, which takes a second.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config import RolloutConfig
    from .pipeline import Limits

RULES = {
    "resample_above": "start a block again whose last change of prediction is more than this share of its first",
    "skip_below": "end a block's denoising when two predictions differ by this or less",
    "still_below": "end the video when a block's first and last latent frame differ by this or less",
}
COUNTS = {
    "max_attempts": "how often a block may start again",
    "resample_blocks": "how many blocks, from the first, may start again",
}


def add_limit_options(parser: argparse.ArgumentParser) -> None:
    """What is not given is the model's."""
    for name, what in RULES.items():
        settings = {"type": _limit, "metavar": "D", "default": argparse.SUPPRESS}
        parser.add_argument(_option(name), **settings, help=f"{what}; a number, or off (default: the model's)")
    for name, what in COUNTS.items():
        settings = {"type": int, "metavar": "N", "default": argparse.SUPPRESS}
        parser.add_argument(_option(name), **settings, help=f"{what} (default: the model's)")


def limits_of(args: argparse.Namespace, rollout: RolloutConfig) -> Limits | None:
    """The model's limits but for those given; None where none is."""
    from .pipeline import Limits

    given = {name: getattr(args, name) for name in (*RULES, *COUNTS) if hasattr(args, name)}
    return replace(Limits.of(rollout), **given) if given else None


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _limit(text: str) -> float | None:
    return None if text == "off" else float(text)
