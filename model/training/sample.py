"""The reference sampler: plain Python, many prompts at once, no caches. For training and tests only.

Block by block, four steps, fresh noise at each; the past is run through the transformer again at timestep 0, which
equals what the KV cache holds. The product's sampler is the graph; this one is simple enough to check by eye.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from model.schedule import add_noise, denoising_sigmas, predict_x0
from model.training import captions, export
from model.training.export import BLOCK_FRAMES as BLOCK
from model.training.export import WINDOW_BLOCKS as WINDOW
from model.training.latents import load_vae
from model.training.teacher import Layout, denoise
from model.training.train_transformer import Generator
from model.training.world import Scene, sample_scene
from model.vae import WanVae

KEPT_BLOCKS = 2 * (WINDOW - 1)  # older blocks reach a new one only through several layers; they are left out


@torch.no_grad()
def sample_latents(
    model: Generator, prompts: list[str], blocks: int, steps: int, generator: torch.Generator, side: int = 16
) -> Tensor:
    """Normalised latents [N, 16, 3·blocks, side, side] for the prompts."""
    ids, mask = captions.encode(captions.build_tokenizer(), prompts)
    done = torch.zeros(len(prompts), 16, 0, side, side)
    with torch.autocast("cpu", torch.bfloat16):
        text = model.text(torch.from_numpy(ids), torch.from_numpy(mask))
        for block in range(blocks):
            first = max(0, block - KEPT_BLOCKS)
            layout = Layout(range(first, block), range(block, block + 1), WINDOW)
            past, shape = done[:, :, first * BLOCK :], (len(prompts), 16, BLOCK, side, side)
            x, x0 = torch.randn(shape, generator=generator), None
            for index, level in enumerate(denoising_sigmas(export.SHIFT, steps)):
                sigma = torch.tensor(level)
                if index:
                    x = add_noise(x0, torch.randn(shape, generator=generator), sigma)
                flow = denoise(model.transformer, past, x, sigma.expand(len(prompts), BLOCK), text, layout)
                x0 = predict_x0(x, flow.float(), sigma)
            done = torch.cat([done, x0], 2)
    return done


@torch.no_grad()
def decode(vae: WanVae, latents: Tensor) -> np.ndarray:
    """Normalised latents [N, 16, F, h, w] -> uint8 [N, 4F − 3, H, W, 3]."""
    videos = []
    for latent in latents:
        raw = vae.denormalise(latent[None]).contiguous(memory_format=torch.channels_last_3d)
        with torch.autocast("cpu", torch.bfloat16):
            video = vae.decode_clip(raw).float()[0]
        videos.append(((video + 1) * 127.5).round().clamp(0, 255).byte().permute(1, 2, 3, 0).numpy())
    return np.stack(videos)


def contact_sheet(videos: np.ndarray, every: int) -> np.ndarray:
    """One row per video [N, F, H, W, 3], every `every`-th frame: uint8 [N·H, columns·W, 3]."""
    rows = [np.concatenate(list(video[::every]), axis=1) for video in videos]
    return np.concatenate(rows, axis=0)


def load_run(run: Path) -> Generator:
    """The averaged weights of a training run."""
    model = Generator()
    model.load_state_dict(torch.load(run / "checkpoint.pt", weights_only=True)["average"])
    return model.eval()


def held_out_scenes(n: int, seed: int) -> list[Scene]:
    """Scenes of combinations that training never saw."""
    rng = np.random.default_rng((seed, 99))
    return [sample_scene(rng, split="held_out") for _ in range(n)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", type=Path, required=True, help="run folder of train_transformer")
    parser.add_argument("--model", type=Path, default=Path(__file__).parents[1] / "tiny", help="for its VAE")
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=4, help="frames from one picture of the sheet to the next")
    parser.add_argument("--out", type=Path, required=True, help="a .png contact sheet")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--judge", action="store_true", help="also score the videos (needs three blocks)")


def run(args: argparse.Namespace) -> None:
    """Sample held-out prompts from a training run, write a contact sheet and, if asked, score them."""
    from PIL import Image

    from model.training.evaluate import score_table, scores

    torch.set_num_threads(args.threads)
    scenes = held_out_scenes(args.n, args.seed)
    prompts = [captions.canonical(scene) for scene in scenes]
    generator = torch.Generator().manual_seed(args.seed)
    model, vae = load_run(args.run), load_vae(args.model)
    parts = [prompts[i : i + 16] for i in range(0, len(prompts), 16)]
    latents = torch.cat([sample_latents(model, part, args.blocks, args.steps, generator) for part in parts])
    videos = decode(vae, latents)
    Image.fromarray(contact_sheet(videos[:12], args.every)).save(args.out)
    print("\n".join(prompts[:12]))
    if args.judge:
        print(score_table(scores(args.model / "judge", scenes, videos)))
