"""The published models we know: where their parts lie, how they are sampled, under which licence.

Knows no Hub and loads nothing. The configurations of Wan 2.1 1.3B, which all of them share, are in wan_1_3b/ in
diffusers layout, with Self-Forcing's sampling in its onegraph.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WAN_1_3B = Path(__file__).parent / "wan_1_3b"
CARD = "check the card"
CARD_BESIDE_CODE = f"{CARD} (the code's repository is Apache-2.0)"
NON_COMMERCIAL = "CC-BY-NC-SA-4.0 (non-commercial)"


@dataclass(frozen=True)
class Preset:
    """A repository on the Hub."""

    name: str  # what a user may call it
    title: str
    repo: str
    licence: str  # of the weights, as far as we know it
    non_commercial: bool | None = None  # None: the card says
    commit: str | None = None  # the one we looked at; None: the tip of its main
    checkpoints: tuple[str, ...] = ()  # .pt files, for one with no safetensors: to be converted first
    transformer: bool = True  # False: its transformer is not a causal one
    rollout: Mapping[str, Any] = field(default_factory=dict)  # where its sampling differs from Self-Forcing's

    def onegraph(self) -> dict[str, Any]:
        """The values of its onegraph.json."""
        return default_rollout() | dict(self.rollout) | {"title": self.title, "licence": self.licence}


def default_rollout() -> dict[str, Any]:
    """The values of Self-Forcing's onegraph.json, which name no licence."""
    return json.loads((WAN_1_3B / "onegraph.json").read_text("utf-8"))


PRESETS = (
    Preset(
        name="self-forcing",
        title="Self-Forcing (Wan 2.1 1.3B)",
        repo="gueraf/Self-Forcing-diffusers",
        licence=f"derived from weights under {NON_COMMERCIAL}; {CARD}",
        non_commercial=True,
    ),
    Preset(
        name="self-forcing-fastvideo",
        title="Self-Forcing as FastVideo packs it (Wan 2.1 1.3B)",
        repo="wlsaidhi/SFWan2.1-T2V-1.3B-Diffusers",
        commit="4b44356635ae5e927ca552a220f768022be76004",
        licence=CARD,
    ),
    Preset(
        name="self-forcing-original",
        title="Self-Forcing (Wan 2.1 1.3B)",
        repo="gdhe17/Self-Forcing",
        commit="2f8b779212da279d212c22a509b66ad6552f350e",
        licence=NON_COMMERCIAL,
        non_commercial=True,
        checkpoints=("checkpoints/self_forcing_dmd.pt",),
    ),
    Preset(
        name="longlive",
        title="LongLive (Wan 2.1 1.3B)",
        repo="Efficient-Large-Model/LongLive-1.3B",
        licence=CARD_BESIDE_CODE,
        checkpoints=("models/longlive_base.pt", "models/lora.pt"),
        rollout={"window_blocks": 3, "sink_blocks": 1},  # 12 latent frames, the 3 of the sink among them
    ),
    Preset(
        name="causal-forcing",
        title="Causal-Forcing, chunk-wise (Wan 2.1 1.3B)",
        repo="zhuhz22/Causal-Forcing",
        licence=CARD_BESIDE_CODE,
        checkpoints=("chunkwise/causal_forcing.pt",),
    ),
    Preset(
        name="wan",
        title="Wan 2.1 1.3B",
        repo="Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
        commit="0fad780a534b6463e45facd96134c9f345acfa5b",
        licence="Apache-2.0",
        non_commercial=False,
        transformer=False,
    ),
)
BASE = PRESETS[-1]  # where the VAE, the text encoder and the tokenizer of all the others come from


def by_name(name: str) -> Preset | None:
    return next((preset for preset in PRESETS if preset.name == name), None)


def by_repo(repo: str) -> Preset | None:
    return next((preset for preset in PRESETS if preset.repo == repo), None)
