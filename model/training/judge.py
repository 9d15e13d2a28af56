"""The judge: a small network that reads the five attributes of a scene from its frames.

It sees pixels only, never the caption, and is trained on rendered clips with the faults of generated ones (blur,
noise, shifted colours), so that it can score generated videos. Knows nothing of the generator.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from model.training.clips import render
from model.training.optim import Average, MuonAdamW
from model.training.runlog import Run, add_run_arguments
from model.training.world import ATTRIBUTES, Scene, sample_scene

STRIDE, TIMES = 4, 9  # it looks at every fourth of 33 frames
SPAN = STRIDE * (TIMES - 1) + 1
WIDTHS = (16, 32, 64, 96)


class Judge(nn.Module):
    """uint8-valued frames [B, TIMES, 3, 128, 128] in 0..1 -> logits per attribute."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in WIDTHS:
            layers += [nn.Conv2d(inputs, width, 5 if inputs == 3 else 3, 2, 2 if inputs == 3 else 1)]
            layers += [nn.GroupNorm(4, width), nn.SiLU()]
            if width in WIDTHS[1:3]:
                layers += [nn.Conv2d(width, width, 3, 1, 1), nn.GroupNorm(4, width), nn.SiLU()]
            inputs = width
        self.features = nn.Sequential(*layers)
        self.where = nn.Sequential(nn.Conv2d(inputs, 16, 1), nn.Flatten(), nn.Linear(16 * 64, 64), nn.SiLU())
        self.course = nn.Sequential(
            nn.Conv1d(64, 64, 3, padding=1), nn.SiLU(), nn.Conv1d(64, 64, 3, padding=1), nn.SiLU()
        )
        self.heads = nn.ModuleDict()
        for name, values in ATTRIBUTES.items():
            size = 64 * TIMES if name == "motion" else 2 * inputs
            self.heads[name] = nn.Sequential(nn.Linear(size, 64), nn.SiLU(), nn.Linear(64, len(values)))

    def forward(self, frames: Tensor) -> dict[str, Tensor]:
        batch, times = frames.shape[:2]
        seen = self.features((frames.flatten(0, 1) - 0.5) * 4)
        pooled = torch.cat([seen.amax((2, 3)), seen.mean((2, 3))], dim=1)
        course = self.course(self.where(seen).view(batch, times, -1).transpose(1, 2)).flatten(1)
        logits = {}
        for name, head in self.heads.items():
            logits[name] = head(course) if name == "motion" else head(pooled).view(batch, times, -1).mean(1)
        return logits


def load_judge(folder: Path) -> Judge:
    """The judge saved below `folder` (…/judge), in float32."""
    judge = Judge()
    judge.load_state_dict({k: v.float() for k, v in load_file(folder / "judge.safetensors").items()})
    return judge.eval()


def save_judge(judge: Judge, folder: Path) -> None:
    """Weights in fp16 and a note of what they read."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "judge.safetensors"
    save_file({k: v.half().contiguous() for k, v in judge.state_dict().items()}, weights)
    weights.chmod(0o644)
    about = {"frames": SPAN, "stride": STRIDE, "attributes": {k: list(v) for k, v in ATTRIBUTES.items()}}
    (folder / "config.json").write_text(json.dumps(about, indent=2) + "\n")


@torch.no_grad()
def read(judge: Judge, frames: np.ndarray) -> dict[str, np.ndarray]:
    """Probabilities per attribute from uint8 [F ≥ 33, H, W, 3]; longer videos are read in several windows."""
    if frames.ndim != 4 or frames.shape[0] < SPAN:
        raise ValueError(f"the judge needs at least {SPAN} frames, not {frames.shape[0]}")
    starts = range(0, frames.shape[0] - SPAN + 1, 16)
    windows = np.stack([frames[s : s + SPAN : STRIDE] for s in starts])
    clips = torch.from_numpy(windows).permute(0, 1, 4, 2, 3).float() / 255
    if clips.shape[-2:] != (128, 128):
        small = F.interpolate(clips.flatten(0, 1), (128, 128), mode="bilinear", antialias=True)
        clips = small.view(*clips.shape[:3], 128, 128)
    return {name: value.log_softmax(-1).mean(0).softmax(-1).numpy() for name, value in judge(clips).items()}


def spoil(clips: Tensor, generator: torch.Generator) -> Tensor:
    """The faults of generated frames on clips [B, T, 3, H, W] in 0..1: blur, ringing, noise, colour shifts."""
    batch = clips.shape[0]

    def level(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand((batch, 1, 1, 1, 1), generator=generator)

    flat = clips.flatten(0, 1)
    small = F.avg_pool2d(flat, int(torch.randint(2, 4, (), generator=generator)))
    blurred = F.interpolate(small, flat.shape[-2:], mode="bilinear").view_as(clips)
    coarse = F.interpolate(torch.randn(8, 3, 32, 32, generator=generator), flat.shape[-2:], mode="bilinear")
    fine = torch.randn(8, *clips.shape[2:], generator=generator)
    pick = torch.randint(8, (2, *clips.shape[:2]), generator=generator)
    out = clips.lerp(blurred, level(-0.3, 1.0))
    out.addcmul_(coarse[pick[0]], level(0, 0.05)).addcmul_(fine[pick[1]], level(0, 0.04))
    tint = 1 + 0.1 * (torch.rand((batch, 1, 3, 1, 1), generator=generator) - 0.5)
    return out.mul_(tint).add_(level(-0.04, 0.04)).clamp_(0, 1)


def clip_batch(rng: np.random.Generator, size: int, split: str) -> tuple[Tensor, Tensor]:
    """Frames [size, TIMES, 3, 128, 128] in 0..1 and labels [size, 5]; half of the clips start anywhere."""
    scenes: list[Scene] = [sample_scene(rng, split=split, any_phase=rng.random() < 0.5) for _ in range(size)]
    frames = np.stack([render(scene, TIMES, stride=STRIDE) for scene in scenes])
    labels = torch.tensor([scene.labels() for scene in scenes])
    return torch.from_numpy(frames).permute(0, 1, 4, 2, 3).float() / 255, labels


@torch.no_grad()
def accuracy(judge: Judge, clips: int, seed: int, split: str = "held_out", spoiled: bool = False) -> dict[str, float]:
    """Share of right readings per attribute on rendered clips."""
    rng, generator = np.random.default_rng((seed, 5)), torch.Generator().manual_seed(seed)
    right = torch.zeros(len(ATTRIBUTES))
    for _ in range(clips // 32):
        frames, labels = clip_batch(rng, 32, split)
        logits = judge(spoil(frames, generator) if spoiled else frames)
        right += torch.stack([(v.argmax(-1) == labels[:, i]).float().sum() for i, v in enumerate(logits.values())])
    return {name: float(r) / (clips // 32 * 32) for name, r in zip(ATTRIBUTES, right, strict=True)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, steps=1500, folder="runs/judge")
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--model", type=Path, default=Path(__file__).parents[1] / "tiny", help="written to …/judge")


def run(args: argparse.Namespace) -> None:
    """Train the judge and save it."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    judge = Judge().to(memory_format=torch.channels_last)
    average = Average(judge, 0.99)
    optimizer = MuonAdamW(judge.named_parameters(), args.lr, plain=("heads",), adam_lr=args.lr / 2)
    training = Run(args)
    if state := training.resume():
        judge.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        average.values = state["average"]
    while training.step < training.stop:
        frames, labels = clip_batch(training.rng(), args.batch, "all")
        frames = spoil(frames, torch.Generator().manual_seed(args.seed * 1_000_003 + training.step))
        optimizer.set_progress(training.share, hold=0.4)
        with torch.autocast("cpu", torch.bfloat16):
            logits = judge(frames.to(torch.bfloat16))
        losses = [F.cross_entropy(v.float(), labels[:, i], label_smoothing=0.02) for i, v in enumerate(logits.values())]
        loss = torch.stack(losses).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(judge.parameters(), 2.0)
        optimizer.step()
        average.update(judge, training.step)
        training.step += 1
        if training.step % 50 == 0:
            training.log(loss=loss.item(), **{k: float(v) for k, v in zip(ATTRIBUTES, map(float, losses), strict=True)})
        if training.step % 300 == 0 or training.step == training.stop:
            judged = Judge()
            judged.load_state_dict(average.values)
            save_judge(judged, args.model / "judge")
            training.log(**accuracy(judged, 256, 1), spoiled=accuracy(judged, 128, 2, spoiled=True))
        if training.due():
            training.save(model=judge.state_dict(), optimizer=optimizer.state_dict(), average=average.values)
