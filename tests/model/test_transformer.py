"""The transformer against diffusers' `WanTransformer3DModel`, in float32 on random weights."""

from itertools import pairwise

import pytest
import torch
from diffusers import WanTransformer3DModel
from diffusers.models.transformers.transformer_wan import WanAttnProcessor

from model import transformer
from model.state import ring_view
from model.transformer import CausalWanTransformer
from tests.model.pairs import relative_error, transformers

# Five of unequal depth, heads, widths and sizes; `size` is the latent's height and width.
CONFIGS = {
    "small": dict(num_attention_heads=2, attention_head_dim=24, text_dim=20, ffn_dim=64, num_layers=2, size=(6, 8)),
    "wide heads": dict(num_attention_heads=3, attention_head_dim=32, text_dim=16, ffn_dim=80, num_layers=3,
                       size=(4, 10)),
    "embedded": dict(num_attention_heads=4, attention_head_dim=56, text_dim=128, ffn_dim=672, num_layers=4,
                     size=(8, 4)),
    "no cross norm": dict(num_attention_heads=5, attention_head_dim=16, text_dim=24, ffn_dim=48, num_layers=6,
                          cross_attn_norm=False, freq_dim=64, size=(2, 14)),
    "wan head": dict(num_attention_heads=2, attention_head_dim=128, text_dim=32, ffn_dim=128, num_layers=1,
                     size=(6, 8)),
}  # fmt: skip
FRAMES = 3
TIMESTEP = 833.3


class BlockCausal(WanAttnProcessor):
    """diffusers' processor with a block-causal mask, for self-attention only."""

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.mask = mask

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None):
        mask = self.mask if encoder_hidden_states is None else None
        return super().__call__(attn, hidden_states, encoder_hidden_states, mask, rotary_emb)


def both(name: str) -> tuple[WanTransformer3DModel, CausalWanTransformer]:
    return transformers(**{key: value for key, value in CONFIGS[name].items() if key != "size"})


def diffusers_last_block(theirs: WanTransformer3DModel, latents: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """All blocks at once, earlier ones clean (timestep 0): their flow for the last block."""
    frames, patches = latents.shape[2], latents.shape[3] * latents.shape[4] // 4
    block_of_token = torch.arange(frames).repeat_interleave(patches) // FRAMES
    theirs.set_attn_processor(BlockCausal(block_of_token[:, None] >= block_of_token[None]))
    timestep = torch.where(block_of_token == block_of_token[-1], TIMESTEP, 0.0)[None]
    return theirs(latents, timestep, text).sample[:, :, -FRAMES:]


def steps_through_cache(ours, latents, text, cache_blocks):
    """Our flow for the last block, the earlier ones committed to the ring one by one."""
    config = ours.config
    rows, columns = latents.shape[3] // 2, latents.shape[4] // 2
    shape = (cache_blocks, FRAMES, rows, columns, config.num_attention_heads, config.attention_head_dim)
    cache = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(config.num_layers)]
    cross = ours.cross_kv(text)
    blocks = latents.split(FRAMES, dim=2)
    for index, block in enumerate(blocks):
        timestep = torch.full((1, FRAMES), TIMESTEP if index == len(blocks) - 1 else 0.0)
        slot, positions, held = ring_view(torch.tensor(index), 0, cache_blocks)
        flow = ours.step(block, timestep, cross, cache, slot, positions, int(held))
    return flow


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_block_0_equals_the_bidirectional_model(name: str) -> None:
    theirs, ours = both(name)
    latents, text = torch.randn(1, 16, FRAMES, *CONFIGS[name]["size"]), torch.randn(1, 7, ours.config.text_dim)
    expected = theirs(latents, torch.tensor([TIMESTEP]), text).sample
    for cache_blocks in (1, 4):  # no room beside the block, and an empty cache
        assert relative_error(steps_through_cache(ours, latents, text, cache_blocks), expected) <= 1e-5
    visible = torch.ones(FRAMES, FRAMES, dtype=torch.bool)
    parallel = ours(latents, torch.full((1, FRAMES), TIMESTEP), text, torch.arange(FRAMES), visible)
    assert relative_error(parallel, expected) <= 1e-5


@pytest.mark.parametrize("blocks", [2, 3, 4])
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_later_blocks_equal_a_block_causal_mask(name: str, blocks: int) -> None:
    theirs, ours = both(name)
    latents = torch.randn(1, 16, FRAMES * blocks, *CONFIGS[name]["size"])
    text = torch.randn(1, 7, ours.config.text_dim)
    expected = diffusers_last_block(theirs, latents, text)
    assert relative_error(steps_through_cache(ours, latents, text, cache_blocks=4), expected) <= 1e-5


@pytest.mark.parametrize("blocks", [1, 4])
@torch.no_grad()
def test_parallel_form_equals_a_block_causal_mask(blocks: int) -> None:
    theirs, ours = both("small")
    frames = FRAMES * blocks
    latents, text = torch.randn(2, 16, frames, *CONFIGS["small"]["size"]), torch.randn(2, 7, ours.config.text_dim)
    block_of_frame = torch.arange(frames) // FRAMES
    timestep = torch.where(block_of_frame == blocks - 1, TIMESTEP, 0.0).expand(2, -1)
    visible = block_of_frame[:, None] >= block_of_frame[None]
    flow = ours(latents, timestep, text, torch.arange(frames), visible)[:, :, -FRAMES:]
    expected = torch.cat([diffusers_last_block(theirs, latents[i : i + 1], text[i : i + 1]) for i in range(2)])
    assert relative_error(flow, expected) <= 1e-5


@torch.no_grad()
def test_a_rolled_ring_equals_a_sliding_window() -> None:
    """Once blocks are evicted, the last block sees exactly the window: same relative distances, nothing older.

    The cached keys of a block depend on what that block saw, so the reference feeds every layer the same history:
    a one-layer model, whose keys depend on nothing but the block itself.
    """
    _, ours = both("wan head")
    window, blocks = 3, 8
    latents = torch.randn(1, 16, FRAMES * blocks, *CONFIGS["wan head"]["size"])
    text = torch.randn(1, 7, ours.config.text_dim)
    rolled = steps_through_cache(ours, latents, text, cache_blocks=window)
    only_window = steps_through_cache(ours, latents[:, :, -FRAMES * window :], text, cache_blocks=window)
    assert relative_error(rolled, only_window) <= 1e-5


@torch.no_grad()
def test_attention_reads_what_is_there_not_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    _, ours = both("small")
    seen, plain = [], transformer.attention

    def recording(q, k, v, mask=None):
        if k.ndim > 4:  # the ring, not the prompt
            assert mask is None  # with one, a GPU's fastest kernel cannot be used
            seen.append(k.shape[1:3].numel() // FRAMES)
        return plain(q, k, v, mask)

    monkeypatch.setattr(transformer, "attention", recording)
    latents = torch.randn(1, 16, FRAMES * 6, *CONFIGS["small"]["size"])
    steps_through_cache(ours, latents, torch.randn(1, 7, ours.config.text_dim), cache_blocks=4)
    assert seen == [count for count in (1, 2, 3, 4, 4, 4) for _ in ours.blocks]


@pytest.mark.parametrize(("sink", "window"), [(0, 3), (1, 2), (2, 3)])
def test_ring_view(sink: int, window: int) -> None:
    """Against a plain list: which block lies in which slot, and where in the window."""
    slots: dict[int, int] = {}
    for block in range(20):
        slot, positions, held = ring_view(torch.tensor(block), sink, window)
        slots[int(slot)] = block
        kept = sorted(slots.values())
        assert kept == [*range(min(sink, block + 1)), *range(max(sink, block - window + 1), block + 1)]
        assert set(range(int(held))) == set(slots)
        in_order = sorted(slots, key=lambda s: slots[s])
        assert [int(positions[s]) for s in in_order] == list(range(len(kept)))
        assert all(b - a == 1 for a, b in pairwise(kept[min(sink, len(kept)) :]))
