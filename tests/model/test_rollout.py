"""The whole rollout, latents and frames, against one written from the formulas on diffusers' modules."""

import pytest
import torch

from model.config import ModelConfig, RolloutConfig
from model.control import PYTHON, Control
from model.generator import Generate
from model.noise import normal, normal_table
from model.pipeline import Request, request_tensors
from model.state import new_state
from tests.model.pairs import relative_error, transformers, vaes
from tests.model.upstream import Sampling, decode, sample

TRANSFORMERS = {
    "shallow": dict(num_attention_heads=2, attention_head_dim=24, text_dim=20, ffn_dim=64, num_layers=1),
    "deep": dict(num_attention_heads=3, attention_head_dim=16, text_dim=12, ffn_dim=80, num_layers=4),
    "wan head": dict(num_attention_heads=1, attention_head_dim=128, text_dim=16, ffn_dim=128, num_layers=2),
}
VAE = dict(base_dim=4, z_dim=16, dim_mult=[1, 2, 2, 2], num_res_blocks=1)
CASES = {
    "inside the window": ("deep", (4, 6), Sampling(blocks=4)),
    "the demo's shift": ("wan head", (2, 8), Sampling(blocks=3, shift=8.0)),
    "evicting": ("wan head", (4, 2), Sampling(blocks=7, window=3)),
    "evicting, with a sink": ("deep", (2, 6), Sampling(blocks=7, window=2, sink=1, context_noise=100.0)),
    "a larger sink, two steps": ("shallow", (6, 4), Sampling(blocks=8, window=2, sink=2, steps=2)),
    "a block of one frame": ("shallow", (2, 4), Sampling(blocks=6, block_frames=1, window=3, sink=1)),
}
SEED = 2**40 + 3


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_latents_and_frames_equal_the_formulas(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form, size, sampling = CASES[name]
    theirs, ours = transformers(**TRANSFORMERS[form])
    their_vae, vae = vaes(**VAE)
    rollout = RolloutConfig(
        block_frames=sampling.block_frames, window_blocks=sampling.window, sink_blocks=sampling.sink,
        shift=sampling.shift, context_noise=sampling.context_noise,
    )  # fmt: skip
    config = ModelConfig(ours.config, vae.config, {}, rollout)
    text = torch.randn(1, 9, ours.config.text_dim)
    shape, table = (1, 16, sampling.block_frames, *size), normal_table()

    def noise(block: int, step: int) -> torch.Tensor:
        counters = [torch.tensor(value) for value in (SEED, block, step, 0)]
        return normal(table, torch.Size(shape).numel(), *counters).view(shape)

    expected = sample(theirs, text, size, sampling, noise)
    expected_frames = decode(their_vae, expected)

    latents, decoded = [], []

    def branch(flag, then, otherwise, operands):
        if flag:
            latents.append(operands[0].clone())
        return PYTHON.branch(flag, then, otherwise, operands)

    plain = vae.decode
    monkeypatch.setattr(vae, "decode", lambda *given: [decoded.append(out := plain(*given)), out][1])
    generate = Generate(ours, vae, config, Control(PYTHON.loop, branch)).eval()
    height, width = (side * config.vae.spatial_factor for side in size)
    state = new_state(config, height, width, torch.float32)
    frames = torch.zeros(sampling.blocks, config.block_video_frames, height, width, 3, dtype=torch.uint8)
    fixed = request_tensors(config, Request("", seed=SEED, height=height, width=width, steps=sampling.steps))
    cross = [tensor for pair in ours.cross_kv(text) for tensor in pair]
    generate(frames, state.block, *fixed, *state.kv, *state.caches, *cross)

    assert relative_error(torch.cat(latents, 2), expected) <= 1e-5
    hidden = config.first_frames_hidden
    video = torch.cat([out[0] for out in decoded], 2)[:, :, hidden:]
    assert video.shape == expected_frames.shape
    assert relative_error(video, expected_frames) <= 1e-5
    levels = ((expected_frames[0] + 1) * 127.5).round().permute(1, 2, 3, 0)
    assert (frames.flatten(0, 1)[hidden:].float() - levels).abs().max() <= 1
