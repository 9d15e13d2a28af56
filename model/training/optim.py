"""Muon on matrices, AdamW on the rest, one cosine for both. Knows nothing of models or data.

Muon (Jordan et al. 2024): momentum, then the update is replaced by its nearest orthogonal matrix, found with a few
Newton–Schulz steps in bfloat16. Matrices of one shape are orthogonalised together, which is what makes it cheap
on a CPU.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn


class MuonAdamW(torch.optim.Optimizer):
    """Muon for parameters of two or more dimensions (flattened to [out, rest]), AdamW for the others.

    `plain` names parameters that AdamW takes although they are matrices (embeddings, output layers).
    """

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        lr: float,
        *,
        plain: tuple[str, ...] = (),
        adam_lr: float | None = None,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
        ns_steps: int = 4,
    ) -> None:
        matrices, rest = [], []
        for name, parameter in named:
            if not parameter.requires_grad:
                continue
            is_plain = parameter.ndim < 2 or any(word in name for word in plain)
            (rest if is_plain else matrices).append(parameter)
        groups = [
            {"params": matrices, "muon": True, "peak": lr},
            {"params": rest, "muon": False, "peak": adam_lr or lr},
        ]
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "ns_steps": ns_steps}
        super().__init__(groups, defaults)

    def set_progress(self, share: float, hold: float, peak_scale: float = 1.0, warmup: float = 0.01) -> None:
        """Learning rates at `share` (0..1) of training: linear warm-up, flat until `hold`, then cosine to zero."""
        if share < hold:
            factor = min(1.0, (share + 1e-4) / warmup)
        else:
            factor = 0.5 * (1 + math.cos(math.pi * min(1.0, (share - hold) / (1 - hold))))
        for group in self.param_groups:
            group["lr"] = group["peak"] * peak_scale * factor

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            (self._muon if group["muon"] else self._adamw)(group)

    def _muon(self, group: dict) -> None:
        lr, momentum = group["lr"], group["momentum"]
        by_shape: dict[tuple[int, int], list[tuple[nn.Parameter, Tensor]]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(parameter)
            moved = state["momentum"].lerp_(parameter.grad, 1 - momentum)
            update = parameter.grad.lerp(moved, momentum).flatten(1)
            by_shape[(update.shape[0], update.shape[1])].append((parameter, update))
        for shape, items in by_shape.items():
            stacked = orthogonalise(torch.stack([update for _, update in items]), group["ns_steps"])
            scale = 0.2 * math.sqrt(max(shape))
            for (parameter, _), update in zip(items, stacked, strict=True):
                parameter.mul_(1 - lr * group["weight_decay"])
                parameter.add_(update.view_as(parameter).to(parameter.dtype), alpha=-lr * scale)

    def _adamw(self, group: dict) -> None:
        lr, (beta1, beta2) = group["lr"], (0.9, 0.98)
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if "step" not in state:
                state["step"] = 0
                state["mean"] = torch.zeros_like(parameter)
                state["square"] = torch.zeros_like(parameter)
            state["step"] += 1
            mean = state["mean"].lerp_(parameter.grad, 1 - beta1)
            square = state["square"].lerp_(parameter.grad.square(), 1 - beta2)
            scale = (square / (1 - beta2 ** state["step"])).sqrt_().add_(1e-8)
            parameter.addcdiv_(mean / (1 - beta1 ** state["step"]), scale, value=-lr)


def orthogonalise(update: Tensor, steps: int = 5) -> Tensor:
    """Nearest (semi-)orthogonal matrices to `update` [N, rows, columns], roughly, by a quintic iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = update.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Average:
    """Exponential moving average of a module's parameters."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = {name: value.detach().clone() for name, value in module.state_dict().items()}

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        """Pull towards the module; young averages forget faster, so that the initial weights do not linger."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                self.values[name].lerp_(value, 1 - decay)
