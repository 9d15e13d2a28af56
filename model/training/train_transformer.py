"""Trains the transformer and the text encoder together on encoded clips: single images, then video, then rollouts.

Teacher forcing: one sequence holds the clean blocks and, after them, the noisy ones; a noisy block sees itself and
the clean blocks of its window, as the KV cache will show them. In the last stage the model's own blocks take the
place of both (rollout.py), and first blocks are pulled towards their prompt (guidance.py). Knows nothing of pixels.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import UMT5Config, UMT5EncoderModel

from model.schedule import TRAIN_TIMESTEPS, add_noise, denoising_sigmas, shifted_sigma
from model.training import captions, export, guidance, latents, rollout
from model.training.guidance import Prompt
from model.training.lean import make_lean
from model.training.optim import Average, MuonAdamW
from model.training.parallel import Team
from model.training.runlog import Run, add_run_arguments
from model.training.teacher import Layout, denoise, forward, frames_of
from model.training.world import Scene
from model.transformer import CausalWanTransformer

BLOCK, WINDOW = export.BLOCK_FRAMES, export.WINDOW_BLOCKS
PEAK_WEIGHT = 6.0  # loss weight where the object is
# How much oftener these are drawn: outlines that need the most practice, and motions without a direction.
HARDER = {
    "star": 2.0,
    "cross": 2.0,
    "heart": 1.5,
    "ring": 1.5,
    "triangle": 1.5,
    "grow": 1.5,
    "shrink": 1.5,
    "spin": 2.5,
}
CONTEXT_NOISE = 0.15  # half of the samples get up to this much noise on their clean blocks
TRANSFORMER_FILE, TEXT_FILE = "transformer/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors"
EMBEDDING = "text_encoder.shared.weight"
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


# What a video batch may hold: only block 0; a clip's start; a clip from anywhere in a motion, past its first block.
LAYOUTS = {
    "first": Layout(range(0), range(1), WINDOW),
    "start": Layout(range(2), range(3), WINDOW),
    "middle": Layout(range(1, 3), range(2, 4), WINDOW),
}


def draw_sigmas(rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    """Noise levels: 80 % from the four-step sampler's own, the rest from the shifted uniform distribution."""
    own = rng.choice(denoising_sigmas(export.SHIFT, export.STEPS), size=shape)
    other = np.vectorize(lambda s: shifted_sigma(s, export.SHIFT))(rng.uniform(0.02, 1, size=shape))
    return torch.from_numpy(np.where(rng.random(shape) < 0.8, own, other)).float()


def flow_loss(
    flow: Tensor, x: Tensor, clean: Tensor, sigma: Tensor, weight: Tensor, pull: Tensor | None = None
) -> Tensor:
    """σ-weighted squared error of the flow (x − clean) / σ, [B, C, F, h, w]; sigma is per frame, [B, 1, F, 1, 1].

    `pull`, if any, is added to the flow that is asked for.
    """
    wanted = (x - clean) / sigma
    error = (flow.float() - (wanted if pull is None else wanted + pull)).square() * sigma * weight
    return error.sum() / (weight.expand_as(error).sum() + 1e-6)


def image_loss(
    model: Generator, clean: Tensor, weight: Tensor, prompt: Prompt, sigma: Tensor, *, guided: bool
) -> Tensor:
    """Loss on single first frames [B, 16, 1, h, w]."""
    level = sigma.view(-1, 1, 1, 1, 1)
    noisy = add_noise(clean, torch.randn_like(clean), level)

    def flow_of(text: Tensor) -> Tensor:
        return forward(model.transformer, noisy, TRAIN_TIMESTEPS * sigma.view(-1, 1), text, LAYOUTS["first"], 1)

    flow, pull = flow_of(prompt.text), None
    if guided:
        with torch.no_grad():
            pull = guidance.pull(flow, flow_of(prompt.blind))
    return flow_loss(flow, noisy, clean, level, weight, pull)


@torch.no_grad()
def first_block_pull(model: Generator, flow: Tensor, x: Tensor, sigma: Tensor, blind: Tensor) -> Tensor:
    """Guidance for noisy frames x [B, 16, F, h, w] that begin with block 0; 0 in later blocks, whose context tells
    what the object is."""
    first, nothing = frames_of(range(1)), x[:, :, :0]
    unled = denoise(model.transformer, nothing, x[:, :, first], sigma[:, first], blind, LAYOUTS["first"])
    pull = torch.zeros_like(flow, dtype=torch.float32)
    pull[:, :, first] = guidance.pull(flow[:, :, first], unled)
    return pull


def video_loss(
    model: Generator,
    clean: Tensor,
    weight: Tensor,
    prompt: Prompt,
    rng: np.random.Generator,
    kind: str,
    *,
    own: list[float] | None,
    guided: bool,
) -> Tensor:
    """Loss on the noisy blocks of a layout, of clips [B, 16, F, h, w].

    `own`: some of the material is what the model makes in steps between these noise levels.

    The context's noise is not told to the model: its timestep is fed as 0, as in the commit pass.
    """
    layout, size = LAYOUTS[kind], clean.shape[0]
    target, past = clean[:, :, frames_of(layout.noisy)], clean[:, :, frames_of(layout.clean)]
    sigma = draw_sigmas(rng, (size, len(layout.noisy))).repeat_interleave(BLOCK, 1)
    x = add_noise(target, torch.randn_like(target), sigma[:, None, :, None, None])
    if own:
        made = rollout.make(model.transformer, past, prompt.text, layout, own)
        x, sigma = rollout.mix_noisy(x, sigma, made, layout, rng)
        past = rollout.mix_context(past, made, layout, rng)
    dirt = np.where(rng.random(size) < 0.5, rng.uniform(0, CONTEXT_NOISE, size), 0.0)
    past = add_noise(past, torch.randn_like(past), torch.from_numpy(dirt).float().view(-1, 1, 1, 1, 1))
    flow = denoise(model.transformer, past, x, sigma, prompt.text, layout)
    pull = first_block_pull(model, flow, x, sigma, prompt.blind) if guided and 0 in layout.noisy else None
    return flow_loss(flow, x, target, sigma[:, None, :, None, None], weight[:, :, frames_of(layout.noisy)], pull)


def draw_text(
    tokenizer: Tokenizer, scenes: Sequence[Scene], rng: np.random.Generator, canonical_share: float
) -> tuple[Tensor, Tensor]:
    """Token ids and masks of fresh captions."""
    ids, mask = captions.encode(tokenizer, [captions.caption(s, rng, canonical_share) for s in scenes])
    return torch.from_numpy(ids), torch.from_numpy(mask)


def read_prompts(model: Generator, tokenizer: Tokenizer, ids: Tensor, mask: Tensor, rng: np.random.Generator) -> Prompt:
    """Embeddings of token ids [B, L], a few of them without their shape, and of all without it."""
    hidden = guidance.hide_shape(tokenizer, ids)
    with torch.no_grad():
        blind = model.text(hidden, mask)
    return Prompt(model.text(guidance.hide_some(ids, hidden, rng), mask), blind)


def how_often(scene: Scene) -> float:
    """The scene's weight when batches are drawn."""
    return math.prod(HARDER.get(value, 1.0) for value in scene.names().values())


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


ODDS = (0.45, 0.10, 0.20, 0.25)  # of images and the layouts above, in the stages that have video
OWN = 0.7  # share of the video batches of the rollout stage that hold the model's own blocks


def step_loss(model: Generator, data: Data, training: Run, args: argparse.Namespace) -> Tensor:
    """One batch's loss: images, block 0 only, a clip from its start or one from its middle."""
    # What decides how long the step takes is the same for the whole team, which waits for its slowest.
    shared, rng = training.rng(1), training.rng(2 + args.rank)
    kind = "image"
    if args.stage != "image":
        odds = (0.3, 0.7, 0.0, 0.0) if training.share < args.first_share else ODDS
        kind = ("image", "first", "start", "middle")[shared.choice(4, p=odds)]
    source = {"image": data.images, "middle": data.middles}.get(kind, data.starts)
    size = {"image": args.batch, "first": args.video_batch * 2}.get(kind, args.video_batch)
    clean, weight, tokens = data.draw(rng, source, size)
    with torch.autocast("cpu", torch.bfloat16):
        prompt, last = read_prompts(model, data.tokenizer, *tokens, rng), args.stage == "rollout"
        if kind == "image":
            return image_loss(model, clean, weight, prompt, draw_sigmas(rng, (size,)), guided=last)
        own = rollout.draw_levels(shared) if last and kind != "first" and shared.random() < OWN else None
        return video_loss(model, clean, weight, prompt, rng, kind, own=own, guided=last)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, steps=2500, folder="runs/transformer")
    parser.add_argument("--stage", choices=("image", "video", "rollout"), required=True)
    parser.add_argument("--data", type=Path, default=Path("runs/latents"), help="folder of the encoded clips")
    parser.add_argument("--model", type=Path, default=Path(__file__).parents[1] / "tiny", help="written to in the end")
    parser.add_argument("--init", type=Path, help="run or model folder whose weights are the start")
    parser.add_argument("--batch", type=int, default=24, help="images in a batch")
    parser.add_argument("--video-batch", type=int, default=8)
    parser.add_argument("--first-share", type=float, default=0.1, help="share of the video stage on block 0 only")
    parser.add_argument("--workers", type=int, default=1, help="processes that train together, each started by hand")
    parser.add_argument("--rank", type=int, default=0, help="this process's number among them")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--hold", type=float, default=0.35, help="share of the schedule before the cosine")


def start_values(folder: Path, model: Generator) -> dict[str, Tensor]:
    """The averaged weights of a run; or those of a model folder, whose words may be others than today's."""
    if (folder / "checkpoint.pt").exists():
        return torch.load(folder / "checkpoint.pt", weights_only=True)["average"]
    weights = {f"transformer.{k}": v.float() for k, v in load_file(folder / TRANSFORMER_FILE).items()}
    weights |= {f"text_encoder.{k}": v.float() for k, v in load_file(folder / TEXT_FILE).items()}
    known = Tokenizer.from_file(str(folder / "tokenizer/tokenizer.json")).get_vocab()
    table = model.text_encoder.shared.weight.detach().clone()
    for index, word in enumerate(captions.vocabulary()):
        if word in known:
            table[index] = weights[EMBEDDING][known[word]]
    weights[EMBEDDING] = weights["text_encoder.encoder.embed_tokens.weight"] = table
    return weights


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
        model.load_state_dict(start_values(args.init, model))
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
    data = Data(args.data, args.stage != "image")
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
