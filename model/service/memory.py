"""What a process holds in memory, as Linux counts it, and how much of its weights it holds alone.

A forked process shares its parent's pages until one of the two writes to them; what is private to it costs memory of
its own. Knows tensors, not models.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

PAGE = os.sysconf("SC_PAGE_SIZE")
_ALONE = 1 << 56  # of an entry in /proc/self/pagemap: no other process maps this page


@dataclass(frozen=True)
class Held:
    """Bytes; None where this system does not tell."""

    resident: int | None  # of the process, its share of nothing taken off
    private: int | None  # pages that no other process has
    shared_memory: int | None  # mapped from /dev/shm and the like
    weights: int
    private_weights: int | None  # in whole pages, so that it is a little less than `weights` where all are private
    device: int | None  # of tensors on a GPU

    def __str__(self) -> str:
        gpu = "" if self.device is None else f"; {_mb(self.device)} on the GPU"
        return (
            f"{_mb(self.resident)} resident, {_mb(self.private)} of it private, {_mb(self.shared_memory)} shared "
            f"memory; weights {_mb(self.weights)}, {_mb(self.private_weights)} of them private{gpu}"
        )


def held(weights: Iterable[Tensor], away: int = 0) -> Held:
    """What this process holds now. weights: those on the CPU; of them, what shares memory counts once.

    away: bytes of weights for a GPU, of which this process may hold no more than the names.
    """
    here = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in weights}
    all_pages, kinds = _figures("smaps_rollup"), _figures("status")
    private = [all_pages[name] for name in ("Private_Clean", "Private_Dirty") if name in all_pages]
    return Held(
        resident=all_pages.get("Rss"),
        private=sum(private) if private else None,
        shared_memory=kinds.get("RssShmem"),
        weights=sum(here.values()) + away,
        private_weights=_private(here.items()),
        device=torch.cuda.memory_allocated() if away and torch.cuda.is_initialized() else None,
    )


def _figures(name: str) -> dict[str, int]:
    """The lines "Name: 12 kB" of a file in /proc/self, in bytes."""
    figures = {}
    with suppress(OSError):
        for line in Path("/proc/self", name).read_text().splitlines():
            match line.split():
                case [title, number, "kB"] if number.isdigit():
                    figures[title.rstrip(":")] = 1024 * int(number)
    return figures


def _private(ranges: Iterable[tuple[int, int]]) -> int | None:
    """Bytes of the whole pages in these ranges (start, size) that only this process has."""
    alone = 0
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            for start, size in ranges:
                first, end = -(-start // PAGE), (start + size) // PAGE
                if end > first:
                    file.seek(8 * first)
                    entries = np.frombuffer(file.read(8 * (end - first)), np.uint64)
                    alone += int(np.count_nonzero(entries & np.uint64(_ALONE)))
    except OSError:
        return None
    return PAGE * alone


def _mb(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 1e6:.1f} MB"
