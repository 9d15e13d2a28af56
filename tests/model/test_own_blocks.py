"""The model's own blocks as training material: where they may stand, and that they are what the sampler would make."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model.schedule import denoising_sigmas
from model.training import rollout
from model.training.export import SHIFT
from model.training.lean import make_lean
from model.training.rollout import Own, grounded, mix_context, mix_noisy
from model.training.teacher import Layout
from model.training.train_transformer import LAYOUTS, Generator

BLOCK = 3


def ones(blocks: int, value: float) -> torch.Tensor:
    return torch.full((64, 1, BLOCK * blocks, 2, 2), value)


@pytest.mark.parametrize(("kind", "expected"), [("first", set()), ("start", {1, 2}), ("middle", {2, 3})])
def test_blocks_without_context_stay_true(kind: str, expected: set[int]) -> None:
    """Where a first block starts is free: its own way and the true one do not belong together."""
    layout, rng = LAYOUTS[kind], np.random.default_rng(0)
    assert set(grounded(layout)) == expected
    own = Own(ones(len(layout.noisy), 5.0), ones(len(layout.noisy), 7.0), 0.25)
    sigma = torch.full((64, BLOCK * len(layout.noisy)), 0.5)
    x, levels = mix_noisy(ones(len(layout.noisy), 0.0), sigma, own, layout, rng)
    assert ((x[:, 0, :, 0, 0] == 7) == (levels == 0.25)).all()
    for index, number in enumerate(layout.noisy):
        share = (levels[:, index * BLOCK] == 0.25).float().mean().item()
        assert share == 0 if number not in expected else 0.4 < share < 0.8
    past = mix_context(ones(len(layout.clean), 0.0), own, layout, rng)
    for index, number in enumerate(layout.clean):
        share = (past[:, 0, index * BLOCK, 0, 0] == 5).float().mean().item()
        assert share == 0 if number not in expected & set(layout.noisy) else 0.4 < share < 0.8


def test_steps_are_the_samplers_but_for_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose flow leads to x0 = 3 everywhere ends there, at one of the sampler's later noise levels."""
    seen: list[float] = []

    def denoise(_model: object, _past: object, x: torch.Tensor, sigma: torch.Tensor, *_: object) -> torch.Tensor:
        seen.append(sigma[0, 0].item())
        return (x - 3) / sigma[:, None, :, None, None]

    monkeypatch.setattr(rollout, "denoise", denoise)
    for seed in range(8):
        seen.clear()
        levels = rollout.draw_levels(np.random.default_rng(seed))
        own = rollout.make(None, torch.zeros(2, 16, 6, 4, 4), None, LAYOUTS["start"], levels)
        assert own.x0.shape == (2, 16, 9, 4, 4)
        assert torch.allclose(own.x0, torch.tensor(3.0), atol=1e-5)
        assert any([*seen, own.sigma] == pytest.approx(denoising_sigmas(SHIFT, n)[: len(seen) + 1]) for n in (2, 4))
        assert own.x.sub(3 * (1 - own.sigma)).std().item() == pytest.approx(own.sigma, rel=0.15)


def test_lean_modules_compute_the_same() -> None:
    torch.manual_seed(0)
    model = Generator().transformer
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05) if parameter.ndim > 1 else None
    layout = Layout(range(0), range(1), 3)
    inputs = torch.randn(2, 16, BLOCK, 8, 8), torch.rand(2, BLOCK) * 1000, torch.randn(2, 32, 128)

    def flow_and_gradients() -> list[torch.Tensor]:
        model.zero_grad()
        out = model(*inputs, layout.frame_positions(BLOCK), layout.visible(BLOCK))
        out.square().mean().backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    plain = flow_and_gradients()
    make_lean(model)
    for exact, lean in zip(plain, flow_and_gradients(), strict=True):
        assert (lean - exact).norm() <= 2e-3 * exact.norm() + 1e-7
