"""Flow matching as Self-Forcing samples it: shifted sigmas, denoising steps, x0 and re-noising. Knows no model.

A noisy latent is x_σ = (1 − σ)·x0 + σ·noise; the transformer predicts the flow noise − x0 and is told the timestep
1000·σ. Formulas: Lipman et al. 2023 (flow matching), Esser et al. 2024 (shift), Huang et al. 2025 (Self-Forcing).
"""

from __future__ import annotations

import torch
from torch import Tensor

TRAIN_TIMESTEPS = 1000.0


def shifted_sigma(s: float, shift: float) -> float:
    """σ = shift·s / (1 + (shift − 1)·s), which gives more of the steps to high noise; s in [0, 1]."""
    return shift * s / (1 + (shift - 1) * s)


def denoising_sigmas(shift: float, steps: int) -> list[float]:
    """σ of each denoising step, from 1 downwards, 0 not included.

    Four steps take s = 1, 0.75, 0.5, 0.25, upstream's [1000, 750, 500, 250]: with shift 5 the timesteps are
    1000, 937.5, 833.3 and 625.
    """
    return [shifted_sigma(1 - index / steps, shift) for index in range(steps)]


def step_tables(shift: float, steps: int, context_noise: float) -> tuple[Tensor, Tensor]:
    """(sigmas, timesteps), float32 [steps + 1]: what each forward of a block reads and is told.

    The last entry is the forward that commits the finished block to the KV cache: it sees x0 itself (σ = 0) and is
    told the timestep `context_noise`.
    """
    sigmas = denoising_sigmas(shift, steps)
    timesteps = [TRAIN_TIMESTEPS * sigma for sigma in sigmas]
    return torch.tensor([*sigmas, 0.0]), torch.tensor([*timesteps, context_noise])


def add_noise(x0: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
    """x_σ = (1 − σ)·x0 + σ·noise, float32."""
    return (1 - sigma) * x0 + sigma * noise


def predict_x0(x: Tensor, flow: Tensor, sigma: Tensor) -> Tensor:
    """x0 = x_σ − σ·flow, float32."""
    return x - sigma * flow
