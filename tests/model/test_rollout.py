"""The whole rollout, latents and frames, against one written from the formulas on diffusers' modules."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from model.config import ModelConfig, RolloutConfig, from_mapping, read_json
from model.control import PYTHON, Control
from model.generator import Generate
from model.noise import normal, normal_table
from model.pipeline import Request, generate_inputs, request_tensors
from model.published.presets import PRESETS, WAN_1_3B, by_name
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


# Wan 2.1 1.3B as it is shipped, but for its width and depth: heads of 128, all of the table of positions, the VAE's
# multipliers and statistics.
REAL_TRANSFORMER = dict(num_attention_heads=2, num_layers=2, ffn_dim=96, text_dim=24)
REAL_VAE = dict(base_dim=4)
# In upstream's own figures: 21 latent frames; LongLive 12, the 3 of its sink among them. 18 blocks are 213 frames.
SHIPPED = {"self-forcing": Sampling(blocks=18, window=7), "longlive": Sampling(blocks=18, window=3, sink=1)}


@pytest.mark.parametrize("name", CASES)
def test_latents_and_frames_equal_the_formulas(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form, size, sampling = CASES[name]
    rollout = RolloutConfig(
        block_frames=sampling.block_frames, window_blocks=sampling.window, sink_blocks=sampling.sink,
        shift=sampling.shift, context_noise=sampling.context_noise,
    )  # fmt: skip
    compare(monkeypatch, TRANSFORMERS[form], VAE, rollout, size, sampling, [sampling.blocks])


@pytest.mark.parametrize("name", SHIPPED)
def test_the_real_settings_go_on_past_81_frames(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call makes the 21 latent frames that upstream ends at, and then more calls go on from its state."""
    rollout = from_mapping(RolloutConfig, by_name(name).onegraph(), name)
    transformer, vae = (
        {key: value for key, value in read_json(WAN_1_3B / part / "config.json").items() if key[0] != "_"}
        for part in ("transformer", "vae")
    )
    sampling = SHIPPED[name]
    compare(monkeypatch, transformer | REAL_TRANSFORMER, vae | REAL_VAE, rollout, (4, 6), sampling, [7, 1, 4, 1, 5])


def test_every_preset_is_sampled_as_one_of_these() -> None:
    assert {preset.name for preset in PRESETS if preset.rollout} == {"longlive"}


@torch.no_grad()
def compare(
    monkeypatch: pytest.MonkeyPatch, transformer: dict[str, Any], vae: dict[str, Any], rollout: RolloutConfig,
    size: tuple[int, int], sampling: Sampling, rooms: Sequence[int],
) -> None:  # fmt: skip
    """Ours by `rollout`, with that much room in each call, and theirs by `sampling`: the same to 1e-5."""
    theirs, ours = transformers(**transformer)
    their_vae, our_vae = vaes(**vae)
    config = ModelConfig(ours.config, our_vae.config, {}, rollout)
    text = torch.randn(1, 9, ours.config.text_dim)
    shape, table = (1, 16, sampling.block_frames, *size), normal_table()

    def noise(block: int, step: int) -> Tensor:
        counters = [torch.tensor(value) for value in (SEED, block, step, 0)]
        return normal(table, torch.Size(shape).numel(), *counters).view(shape)

    expected = sample(theirs, text, size, sampling, noise)
    expected_frames = decode(their_vae, expected)

    latents, decoded = [], []

    def branch(flag, then, otherwise, operands):
        if flag:
            latents.append(operands[0].clone())
        return PYTHON.branch(flag, then, otherwise, operands)

    plain = our_vae.decode
    monkeypatch.setattr(our_vae, "decode", lambda *given: [decoded.append(out := plain(*given)), out][1])
    generate = Generate(ours, our_vae, config, Control(PYTHON.loop, branch)).eval()
    height, width = (side * config.vae.spatial_factor for side in size)
    state = new_state(config, height, width, torch.float32)
    fixed = request_tensors(config, Request("", seed=SEED, height=height, width=width, steps=sampling.steps))
    cross = [tensor for pair in ours.cross_kv(text) for tensor in pair]
    made = []
    for room in rooms:
        made.append(torch.zeros(room, config.block_video_frames, height, width, 3, dtype=torch.uint8))
        state.block, _ = generate(*generate_inputs(made[-1], state, fixed, cross).values())

    assert int(state.block) == sum(rooms) == sampling.blocks
    assert relative_error(torch.cat(latents, 2), expected) <= 1e-5
    hidden = config.first_frames_hidden
    video = torch.cat([out[0] for out in decoded], 2)[:, :, hidden:]
    assert video.shape == expected_frames.shape
    assert relative_error(video, expected_frames) <= 1e-5
    levels = ((expected_frames[0] + 1) * 127.5).round().permute(1, 2, 3, 0)
    frames = torch.cat(made).flatten(0, 1)[hidden:]
    assert (frames.float() - levels).abs().max() <= 1
