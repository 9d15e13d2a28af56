"""Trains the transformer and the text encoder together on encoded clips: single images first, then video.

Teacher forcing: one sequence holds the clean blocks and, after them, the noisy ones; a noisy block sees itself and
the clean blocks of its window, as the KV cache will show them. Knows nothing of pixels.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import UMT5Config, UMT5EncoderModel

from model.schedule import TRAIN_TIMESTEPS, denoising_sigmas, shifted_sigma
from model.training import captions, export, latents
from model.training.lean import make_lean
from model.training.optim import Average, MuonAdamW
from model.training.parallel import Team
from model.training.runlog import Run, add_run_arguments
from model.training.teacher import Layout, forward
from model.training.world import SHAPES, Scene
from model.transformer import CausalWanTransformer

BLOCK, WINDOW = export.BLOCK_FRAMES, export.WINDOW_BLOCKS
PEAK_WEIGHT = 6.0  # loss weight where the object is
HARDER = {"star": 4.0, "ring": 2.0}  # how much oftener a shape is drawn: their outlines need the most practice
CONTEXT_NOISE = 0.15  # half of the samples get up to this much noise on their clean blocks
PLAIN = ("shared", "embed_tokens", "relative_attention_bias", "scale_shift_table", "patch_embedding", "proj_out")


class Generator(nn.Module):
    """The two parts that train together."""

    def __init__(self) -> None:
        super().__init__()
        self.text_encoder = UMT5EncoderModel(UMT5Config(**export.TEXT_ENCODER))
        self.transformer = CausalWanTransformer(export.TRANSFORMER)
        export.initialise(self.transformer)

    def text(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask [B, L] -> embeddings [B, L, 128], zero past the prompt's end."""
        return self.text_encoder(input_ids=ids, attention_mask=mask).last_hidden_state * mask.unsqueeze(-1)


def draw_sigmas(rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    """Noise levels: 80 % from the four-step sampler's own, the rest from the shifted uniform distribution."""
    own = rng.choice(denoising_sigmas(export.SHIFT, export.STEPS), size=shape)
    other = np.vectorize(lambda s: shifted_sigma(s, export.SHIFT))(rng.uniform(0.02, 1, size=shape))
    return torch.from_numpy(np.where(rng.random(shape) < 0.8, own, other)).float()


def flow_loss(flow: Tensor, clean: Tensor, noise: Tensor, sigma: Tensor, weight: Tensor) -> Tensor:
    """σ-weighted squared error of the flow [B, C, F, h, w]; sigma is per frame, [B, 1, F, 1, 1]."""
    error = (flow.float() - (noise - clean)).square() * sigma * weight
    return error.sum() / (weight.expand_as(error).sum() + 1e-6)


def image_loss(model: Generator, clean: Tensor, weight: Tensor, text: Tensor, sigma: Tensor) -> Tensor:
    """Loss on single first frames [B, 16, 1, h, w]."""
    noise = torch.randn_like(clean)
    level = sigma.view(-1, 1, 1, 1, 1)
    noisy = (1 - level) * clean + level * noise
    layout = Layout(range(0), range(1), WINDOW)
    flow = forward(model.transformer, noisy, TRAIN_TIMESTEPS * sigma.view(-1, 1), text, layout, 1)
    return flow_loss(flow, clean, noise, level, weight)


def video_loss(
    model: Generator, clean: Tensor, weight: Tensor, text: Tensor, sigma: Tensor, dirt: Tensor, layout: Layout
) -> Tensor:
    """Loss on the layout's noisy blocks of clips [B, 16, F, h, w]; sigma [B, blocks], dirt [B] context noise.

    The context's noise is not told to the model: its timestep is fed as 0, as in the commit pass.
    """

    def frames(blocks: range) -> slice:
        return slice(blocks.start * BLOCK, blocks.stop * BLOCK)

    target, past = clean[:, :, frames(layout.noisy)], clean[:, :, frames(layout.clean)]
    noise = torch.randn_like(target)
    per_frame = sigma.repeat_interleave(BLOCK, 1)
    level = per_frame[:, None, :, None, None]
    noisy = (1 - level) * target + level * noise
    amount = dirt.view(-1, 1, 1, 1, 1)
    past = (1 - amount) * past + amount * torch.randn_like(past)
    times = torch.cat([torch.zeros(past.shape[0], past.shape[2]), TRAIN_TIMESTEPS * per_frame], dim=1)
    flow = forward(model.transformer, torch.cat([past, noisy], dim=2), times, text, layout, BLOCK)
    return flow_loss(flow[:, :, past.shape[2] :], target, noise, level, weight[:, :, frames(layout.noisy)])


def draw_text(
    tokenizer: Tokenizer, scenes: Sequence[Scene], rng: np.random.Generator, canonical_share: float
) -> tuple[Tensor, Tensor]:
    """Token ids and masks of fresh captions."""
    ids, mask = captions.encode(tokenizer, [captions.caption(s, rng, canonical_share) for s in scenes])
    return torch.from_numpy(ids), torch.from_numpy(mask)


def how_often(scene: Scene) -> float:
    """The scene's weight when batches are drawn."""
    return HARDER.get(SHAPES[scene.shape], 1.0)


class Data:
    """The data sets and the tokenizer, and how batches are drawn from them."""

    def __init__(self, folder: Path, video: bool) -> None:
        self.images = latents.load(folder / "images.pt")
        # Clips from the start of a motion, and clips from anywhere in it, whose first block is context only.
        self.starts = latents.load(folder / "starts.pt") if video else None
        self.middles = latents.load(folder / "middles.pt") if video else None
        self.tokenizer = captions.build_tokenizer()

    def draw(
        self, rng: np.random.Generator, source: latents.LatentSet, size: int
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Latents, loss weights and tokens of a random batch."""
        often = np.array([how_often(scene) for scene in source.scenes])
        index = torch.from_numpy(rng.choice(len(often), size=size, p=often / often.sum()))
        tokens = draw_text(self.tokenizer, [source.scenes[i] for i in index.tolist()], rng, 0.5)
        return source.latents[index].float(), source.weights(index, PEAK_WEIGHT), tokens


# What a video batch may hold: only block 0; a clip's start; a clip from anywhere in a motion, past its first block.
LAYOUTS = {
    "first": Layout(range(0), range(1), WINDOW),
    "start": Layout(range(2), range(3), WINDOW),
    "middle": Layout(range(1, 3), range(2, 4), WINDOW),
}


ODDS = (0.45, 0.10, 0.20, 0.25)  # of images and the layouts above, in the video stage


def step_loss(model: Generator, data: Data, training: Run, args: argparse.Namespace) -> Tensor:
    """One batch's loss: images, block 0 only, a clip from its start or one from its middle."""
    kind = "image"
    if args.stage == "video":
        odds = (0.3, 0.7, 0.0, 0.0) if training.share < args.first_share else ODDS
        kind = ("image", "first", "start", "middle")[training.rng(1).choice(4, p=odds)]  # the same for the whole team
    rng = training.rng(2 + args.rank)
    source = {"image": data.images, "middle": data.middles}.get(kind, data.starts)
    size = {"image": args.batch, "first": args.video_batch * 2}.get(kind, args.video_batch)
    clean, weight, tokens = data.draw(rng, source, size)
    with torch.autocast("cpu", torch.bfloat16):
        text = model.text(*tokens)
        if kind == "image":
            return image_loss(model, clean, weight, text, draw_sigmas(rng, (size,)))
        dirt = np.where(rng.random(size) < 0.5, rng.uniform(0, CONTEXT_NOISE, size), 0.0)
        sigma = draw_sigmas(rng, (size, len(LAYOUTS[kind].noisy)))
        return video_loss(model, clean, weight, text, sigma, torch.from_numpy(dirt).float(), LAYOUTS[kind])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, steps=2500, folder="runs/transformer")
    parser.add_argument("--stage", choices=("image", "video"), required=True)
    parser.add_argument("--data", type=Path, default=Path("runs/latents"), help="folder of the encoded clips")
    parser.add_argument("--model", type=Path, default=Path(__file__).parents[1] / "tiny", help="written to in the end")
    parser.add_argument("--init", type=Path, help="run folder whose averaged weights are the start")
    parser.add_argument("--batch", type=int, default=24, help="images in a batch")
    parser.add_argument("--video-batch", type=int, default=8)
    parser.add_argument("--first-share", type=float, default=0.1, help="share of the video stage on block 0 only")
    parser.add_argument("--workers", type=int, default=1, help="processes that train together, each started by hand")
    parser.add_argument("--rank", type=int, default=0, help="this process's number among them")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--hold", type=float, default=0.35, help="share of the schedule before the cosine")


def save_average(folder: Path, values: dict[str, Tensor]) -> None:
    """Averaged weights into a model folder."""
    parts: dict[str, dict[str, Tensor]] = {"transformer": {}, "text_encoder": {}}
    for name, value in values.items():
        part, key = name.split(".", 1)
        parts[part][key] = value
    export.write_transformer(folder, parts["transformer"], parts["text_encoder"])


def run(args: argparse.Namespace) -> None:
    """Train one stage."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)  # despite its name it holds for the CPU too
    model = Generator()
    if args.init:
        model.load_state_dict(torch.load(args.init / "checkpoint.pt", weights_only=True)["average"])
    make_lean(model.transformer)
    average = Average(model, 0.997)
    optimizer = MuonAdamW(model.named_parameters(), args.lr, plain=PLAIN, adam_lr=args.lr * 0.7)
    training, team = Run(args), Team(args.rank, args.workers, args.run / "team")
    if state := training.resume():
        model.load_state_dict(state["model"])
        peaks = [group["peak"] for group in optimizer.param_groups]  # those asked for now, not those saved
        optimizer.load_state_dict(state["optimizer"])
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["peak"] = peak
        average.values = state["average"]
    data = Data(args.data, args.stage == "video")
    running, begun = 0.0, training.step
    while training.step < training.stop:
        optimizer.set_progress(training.share, args.hold)
        torch.manual_seed((args.seed * 1_000_003 + training.step) * args.workers + args.rank)
        loss = step_loss(model, data, training, args)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        team.average_gradients(model)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update(model, training.step)
        training.step += 1
        running += (loss.item() - running) / min(training.step - begun, 50)
        if training.step % 25 == 0 and team.leads:
            training.log(loss=running, norm=float(norm))
        if training.due() and team.leads:
            training.save(model=model.state_dict(), optimizer=optimizer.state_dict(), average=average.values)
    if team.leads:
        save_average(args.model, average.values)
