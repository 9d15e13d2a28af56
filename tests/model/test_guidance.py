"""Guidance in training: which words it hides, where it pulls, and what that does to the loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model.training import captions, guidance
from model.training.train_transformer import LAYOUTS, Generator, first_block_pull, read_prompts, video_loss


@pytest.fixture(scope="module")
def model() -> Generator:
    torch.manual_seed(0)
    model = Generator()
    torch.nn.init.normal_(model.transformer.proj_out.weight, std=0.02)  # it starts from a flow of zero
    return model.eval()


def encode(*texts: str) -> tuple[torch.Tensor, torch.Tensor]:
    ids, mask = captions.encode(captions.build_tokenizer(), list(texts))
    return torch.from_numpy(ids), torch.from_numpy(mask)


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("a big red circle moving left at night", "a big red <unk> moving left at night"),
        ("in the moonlight, a crescent moon rises", "in the moonlight, a <unk> <unk> rises"),
        ("a plus sign in the city", "a <unk> <unk> in the city"),
        ("golden, at sea", "golden, at sea"),
    ],
)
def test_only_the_words_for_the_shape_are_hidden(text: str, without: str) -> None:
    tokenizer = captions.build_tokenizer()
    assert torch.equal(guidance.hide_shape(tokenizer, encode(text)[0]), encode(without)[0])


def test_some_captions_are_shown_without_their_shape() -> None:
    ids, hidden = torch.ones(4000, 3), torch.zeros(4000, 3)
    shown = guidance.hide_some(ids, hidden, np.random.default_rng(0))
    assert set(shown.mean(1).tolist()) == {0.0, 1.0}
    assert 1 - shown.mean().item() == pytest.approx(guidance.HIDDEN, abs=0.02)


def test_the_target_moves_from_the_blind_flow_to_the_prompts(model: Generator) -> None:
    flow, blind = torch.ones(2, 3, requires_grad=True), torch.zeros(2, 3)
    pull = guidance.pull(flow, blind)
    assert not pull.requires_grad
    assert torch.equal(pull, torch.full((2, 3), guidance.STRENGTH))


def test_first_blocks_alone_are_pulled(model: Generator) -> None:
    x, sigma = torch.randn(1, 16, 9, 4, 4), torch.full((1, 9), 0.6)
    prompt = read_prompts(
        model, captions.build_tokenizer(), *encode("a big red star spinning at sea"), np.random.default_rng(0)
    )
    flow = torch.randn_like(x)
    pull = first_block_pull(model, flow, x, sigma, prompt.blind)
    assert pull[:, :, :3].abs().min() > 0
    assert not pull[:, :, 3:].any()
    # Its own block 0, sampled without context: the same flow gives no pull.
    again = first_block_pull(model, flow - pull / guidance.STRENGTH, x, sigma, prompt.blind)
    assert again.abs().max() < 1e-5


@pytest.mark.parametrize("kind", LAYOUTS)
def test_guidance_changes_the_loss_only_where_there_is_a_first_block(model: Generator, kind: str) -> None:
    clean, weight = torch.randn(1, 16, 12, 4, 4), torch.ones(1, 1, 12, 4, 4)

    def loss(guided: bool) -> float:
        torch.manual_seed(1)
        rng = np.random.default_rng(1)
        prompt = read_prompts(model, captions.build_tokenizer(), *encode("a big red star spinning at sea"), rng)
        with torch.no_grad():
            return video_loss(model, clean, weight, prompt, rng, kind, own=None, guided=guided).item()

    assert (loss(True) != loss(False)) == (0 in LAYOUTS[kind].noisy)
