"""Trains the VAE on rendered clips: one parallel causal pass over 17 frames, on crops. Resumable.

Latents are deterministic; the noise added to them in training makes the decoder tolerate what the transformer
gets slightly wrong. Knows nothing of captions.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from model.config import VaeConfig
from model.training import export
from model.training.clips import render, render_with_mask
from model.training.optim import Average, MuonAdamW
from model.training.runlog import Run, add_run_arguments
from model.training.world import sample_scene
from model.vae import WanVae, unpatchify
from model.vae_layers import History, RmsNorm

CONFIG = VaeConfig(
    base_dim=24,
    z_dim=16,
    dim_mult=(1, 2, 2),
    num_res_blocks=1,
    temperal_downsample=(True, True),
    is_residual=True,
    in_channels=12,
    out_channels=12,
    patch_size=2,
)
FRAMES, CROP = 17, 64
OBJECT_CROPS = 0.75  # share of crops that hold the object's centre


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, steps=2200, folder="runs/vae")
    parser.add_argument("--init", type=Path, help="model folder whose VAE is the start")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2.5e-3)
    parser.add_argument("--freeze", type=int, default=1100, help="the step from which only the decoder trains")
    parser.add_argument("--model", type=Path, default=Path(__file__).parents[1] / "tiny", help="written to …/vae")


class HalfRmsNorm(RmsNorm):
    """The same norm with only its sum in float32: a quarter off the training step."""

    def forward(self, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float32).clamp_min(1e-12)
        return x * (self.gamma.shape[0] ** 0.5 / norm).to(x.dtype) * self.gamma.to(x.dtype)


def build() -> WanVae:
    """A VAE prepared for bf16 training; its 3-D kernels lie channels-last, which is several times faster."""
    vae = WanVae(CONFIG)
    for module in vae.modules():
        if isinstance(module, RmsNorm):
            module.__class__ = HalfRmsNorm
        if isinstance(module, nn.Conv3d):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last_3d)
    return vae


def batch(rng: np.random.Generator, size: int, crop: int = CROP, frames: int = FRAMES) -> tuple[Tensor, Tensor]:
    """Crops [B, 3, T, crop, crop] in [−1, 1] and the object's mask, dilated, [B, 1, T, crop, crop] in 0..1."""
    videos, masks = [], []
    for _ in range(size):
        video, mask = render_with_mask(sample_scene(rng, any_phase=True), frames)
        if rng.random() < OBJECT_CROPS:
            spots = np.argwhere(mask[rng.integers(frames)] > 0.5)
            top, left = spots[rng.integers(len(spots))] - rng.integers(crop // 4, 3 * crop // 4, 2)
        else:
            top, left = rng.integers(0, 128 - crop + 1, 2)
        top, left = np.clip([top, left], 0, 128 - crop)
        videos.append(video[:, top : top + crop, left : left + crop])
        masks.append(mask[:, top : top + crop, left : left + crop])
    clip = torch.from_numpy(np.stack(videos)).permute(0, 4, 1, 2, 3).float() / 127.5 - 1
    mask = torch.from_numpy(np.stack(masks))
    return clip, F.max_pool2d(mask, 7, stride=1, padding=3).unsqueeze(1)


def decode(vae: WanVae, raw: Tensor) -> Tensor:
    """vae.decode_clip without its clamp, which would stop the gradient."""
    history = History(first=torch.ones((), dtype=torch.bool))
    video = unpatchify(vae.decoder(vae.post_quant_conv(raw), history), vae.config.patch_size or 1)
    return video[:, :, vae.config.temporal_factor - 1 :]


def loss_of(out: Tensor, clip: Tensor, weight: Tensor) -> Tensor:
    """L1 + 2·MSE + 0.5·L1 of the spatial gradients, weighted per pixel."""
    error = out - clip
    across = (error[..., 1:] - error[..., :-1]).abs() * weight[..., 1:]
    along = (error[..., 1:, :] - error[..., :-1, :]).abs() * weight[..., 1:, :]
    pixel = (error.abs() + 2 * error.square()) * weight
    return pixel.mean() + 0.5 * (across.mean() + along.mean())


def psnr(out: Tensor, clip: Tensor) -> float:
    """Peak signal-to-noise ratio in dB of a video in [−1, 1]."""
    return -10 * math.log10(((out.clamp(-1, 1) - clip) / 2).square().mean().item() + 1e-12)


@torch.no_grad()
def evaluate(vae: WanVae, seed: int = 1, clips: int = 8, frames: int = 33) -> dict[str, float]:
    """PSNR on whole held-out 128×128 clips: mean, worst, and on the object's surroundings only."""
    rng = np.random.default_rng((seed, 77))
    scores, objects = [], []
    for _ in range(clips):
        video, mask = render_with_mask(sample_scene(rng, split="held_out", any_phase=True), frames)
        clip = torch.from_numpy(video).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
        with torch.autocast("cpu", torch.bfloat16):
            out = vae.decode_clip(vae.encode(clip)).float()
        near = F.max_pool2d(torch.from_numpy(mask), 7, stride=1, padding=3)[None, None] > 0.5
        near = near.expand_as(clip)
        scores.append(psnr(out, clip))
        objects.append(psnr(out[near], clip[near]))
    return {"psnr": float(np.mean(scores)), "worst": min(scores), "object": float(np.mean(objects))}


@torch.no_grad()
def statistics(vae: WanVae, clips: int = 48, seed: int = 3) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of every latent channel over whole training clips."""
    rng = np.random.default_rng((seed, 78))
    seen = []
    for _ in range(clips):
        video = render(sample_scene(rng, any_phase=True), FRAMES)
        with torch.autocast("cpu", torch.bfloat16):
            clip = torch.from_numpy(video).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
            seen.append(vae.encode(clip).float()[0].flatten(1))
    latents = torch.cat(seen, dim=1)
    return tuple(latents.mean(1).tolist()), tuple(latents.std(1).tolist())


def write(folder: Path, values: dict[str, Tensor]) -> None:
    """The averaged weights and their latents' statistics into a model folder."""
    vae = build()
    vae.load_state_dict(values)
    mean, std = statistics(vae)
    config = dataclasses.replace(CONFIG, latents_mean=mean, latents_std=std)
    export.write_vae(folder, config, values)
    export.write_layout(folder)


def freeze_encoder(vae: WanVae, average: Average) -> None:
    """From here on the latents stay as they are, so that the transformer's data can be encoded already."""
    for name, parameter in vae.named_parameters():
        if name.startswith(("encoder.", "quant_conv.")):
            parameter.data.copy_(average.values[name])
            parameter.requires_grad_(False)
            parameter.grad = None


def run(args: argparse.Namespace) -> None:
    """Train the VAE and write it to the model folder, at the freeze of the encoder and at the end."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    vae = build()
    if args.init:
        weights = load_file(args.init / "vae/diffusion_pytorch_model.safetensors")
        vae.load_state_dict({name: value.float() for name, value in weights.items()})
    average = Average(vae, 0.99)
    optimizer = MuonAdamW(vae.named_parameters(), args.lr, adam_lr=0.8 * args.lr, weight_decay=0.0)
    training = Run(args)
    if state := training.resume():
        vae.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        average.values = state["average"]
        if training.step > args.freeze:
            freeze_encoder(vae, average)
    while training.step < training.stop:
        if training.step == args.freeze:
            freeze_encoder(vae, average)
            write(args.model, average.values)
        clip, mask = batch(training.rng(), args.batch)
        optimizer.set_progress(training.share, hold=0.4)
        noise_level = 0.1 if training.share < 0.6 else 0.07
        weight = 1 + (2 if training.share < 0.4 else 4) * mask
        torch.manual_seed(args.seed * 1_000_003 + training.step)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.set_grad_enabled(training.step < args.freeze):
                raw = vae.encode(clip.contiguous(memory_format=torch.channels_last_3d))
            out = decode(vae, raw + noise_level * torch.randn_like(raw))
        loss = loss_of(out.float(), clip, weight) + 1e-3 * raw.float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        average.update(vae, training.step)
        training.step += 1
        if training.step % 25 == 0:
            training.log(loss=loss.item(), psnr=psnr(out.float().detach(), clip), latent=raw.float().std().item())
        if training.step % 300 == 0 or training.step == training.stop:
            judged = build()
            judged.load_state_dict(average.values)
            training.log(**evaluate(judged))
        if training.due():
            training.save(model=vae.state_dict(), optimizer=optimizer.state_dict(), average=average.values)
    write(args.model, average.values)
