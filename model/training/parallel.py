"""Two or more training processes of one thread each that average their gradients. Knows nothing of what is trained.

On a shared CPU this beats one process of several threads, which waits for its slowest thread at every operation;
here the processes meet once a step.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Team:
    """This process's place among `size` others; with a size of 1 nothing is done."""

    def __init__(self, rank: int, size: int, folder: Path) -> None:
        self.rank, self.size = rank, size
        if size > 1:
            folder.mkdir(parents=True, exist_ok=True)
            dist.init_process_group("gloo", init_method=f"file://{folder.resolve()}/team", rank=rank, world_size=size)

    @property
    def leads(self) -> bool:
        """Whether this process writes logs and checkpoints."""
        return self.rank == 0

    def average_gradients(self, module: nn.Module) -> None:
        """Replace every gradient by its mean over the team."""
        if self.size == 1:
            return
        gradients: list[Tensor] = [p.grad for p in module.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.size
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
