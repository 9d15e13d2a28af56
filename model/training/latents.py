"""Encodes rendered clips once, so that the transformer trains on latents alone. Knows nothing of the transformer.

A data set is one .pt file: latents normalised to unit deviation, fp16 [N, 16, F, 16, 16], the scenes they show, and
where the object is in them.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from model.config import VaeConfig, from_mapping, read_json
from model.training.clips import render_with_mask
from model.training.world import MOTIONS, SPIN_PERIOD, Scene, sample_scene
from model.vae import WanVae


@dataclass(frozen=True)
class LatentSet:
    """Encoded clips; `places` uint8 [N, F, 16, 16] is 255 in latent cells that hold some of the object."""

    latents: Tensor
    scenes: list[Scene]
    places: Tensor

    def weights(self, index: Tensor, peak: float) -> Tensor:
        """Loss weights [B, 1, F, h, w]: `peak` where the object is, half of that in the cells around it, else 1."""
        inside = self.places[index].float() / 255
        around = F.max_pool2d(inside, 3, stride=1, padding=1)
        return 1 + (peak - 1) * (0.5 * (inside + around)).unsqueeze(1)


def load_vae(folder: Path) -> WanVae:
    """The VAE of a model folder in bf16-friendly float32."""
    vae = WanVae(from_mapping(VaeConfig, read_json(folder / "vae/config.json"), "vae/config.json"))
    weights = load_file(folder / "vae/diffusion_pytorch_model.safetensors")
    vae.load_state_dict({name: value.float() for name, value in weights.items()}, strict=True)
    for module in vae.modules():
        if isinstance(module, torch.nn.Conv3d):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last_3d)
    return vae.eval()


def to_video(frames: np.ndarray) -> Tensor:
    """uint8 [F, H, W, 3] -> float32 [1, 3, F, H, W] in [−1, 1]."""
    video = torch.from_numpy(frames).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
    return video.contiguous(memory_format=torch.channels_last_3d)


@torch.no_grad()
def encode_clip(vae: WanVae, frames: np.ndarray) -> Tensor:
    """uint8 [F, H, W, 3] -> normalised latents, fp16 [16, 1 + (F − 1)/4, H/8, W/8]."""
    with torch.autocast("cpu", torch.bfloat16):
        raw = vae.encode(to_video(frames)).float()
    return vae.normalise(raw)[0].half()


def latent_places(mask: np.ndarray) -> Tensor:
    """Coverage [F, H, W] -> uint8 [1 + (F − 1)/4, H/8, W/8], the most of any pixel that a latent cell stands for."""
    cells = F.max_pool2d(torch.from_numpy(mask)[None], 8)[0]
    later = cells[1:].unflatten(0, (-1, 4)).amax(1)
    return (255 * torch.cat([cells[:1], later])).byte()


def build(vae: WanVae, scenes: list[Scene], frames: int) -> LatentSet:
    """Render and encode the scenes."""
    latents, places = [], []
    for scene in scenes:
        video, mask = render_with_mask(scene, frames)
        latents.append(encode_clip(vae, video))
        places.append(latent_places(mask))
    return LatentSet(torch.stack(latents), scenes, torch.stack(places))


def save(path: Path, data: LatentSet) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = [list(astuple(scene)) for scene in data.scenes]
    torch.save({"latents": data.latents, "places": data.places, "scenes": json.dumps(table)}, f"{path}.new")
    os.replace(f"{path}.new", path)


def load(path: Path) -> LatentSet:
    state = torch.load(path, weights_only=True)
    scenes = [Scene(*row) for row in json.loads(state["scenes"])]
    return LatentSet(state["latents"], scenes, state["places"])


def draw_scenes(rng: np.random.Generator, args: argparse.Namespace) -> list[Scene]:
    """Training scenes. Single frames show what spins from the front, as a video's first frame does."""
    motions = [None] * args.count + ["spin"] * args.spinning
    scenes = [sample_scene(rng, any_phase=args.any_phase, motion=motion) for motion in motions]
    if args.frames > 1:
        return scenes
    return [replace(s, phase=s.phase - s.phase % SPIN_PERIOD) if MOTIONS[s.motion] == "spin" else s for s in scenes]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=Path(__file__).parents[1] / "tiny")
    parser.add_argument("--out", type=Path, required=True, help="the .pt file to write")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--frames", type=int, default=45, help="1 for single first frames")
    parser.add_argument("--any-phase", action="store_true", help="start at any moment of the motion")
    parser.add_argument("--spinning", type=int, default=0, help="as many more, of things that spin")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)


def run(args: argparse.Namespace) -> None:
    """Write one data set of training scenes."""
    torch.set_num_threads(args.threads)
    rng = np.random.default_rng((args.seed, args.frames, int(args.any_phase)))
    scenes = draw_scenes(rng, args)
    save(args.out, build(load_vae(args.model), scenes, args.frames))
