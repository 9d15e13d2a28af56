"""Counter-based noise: Philox4x32-10 words turned into normal values by a table. Knows no model.

Every value is a function of the seed and of where it is used, so there is no generator state to keep, and the same
graph gives the same bits in any process. Integer arithmetic and a gather are exact everywhere; float32 Box-Muller
would not be (compiled and eager differ in the last bit on a third of the values).

Philox: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import torch
from torch import Tensor

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
WORD = 0xFFFFFFFF
TABLE_BITS = 16
VALUES_PER_CALL = 8  # four 32-bit words of two table indices each

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Philox4x32-10 on int64 tensors that hold 32-bit words (broadcast together)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, MULTIPLIERS[0])
        high1, low1 = _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return c0, c1, c2, c3


def _multiply(word: Tensor, constant: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a 32 × 32 bit product, in 16-bit limbs so that int64 never overflows."""
    low = word * (constant & 0xFFFF)
    high = word * (constant >> 16)
    return (high + (low >> 16)) >> 16, (low + ((high & 0xFFFF) << 16)) & WORD


def normal_table() -> Tensor:
    """The normal quantiles of (i + ½) / 65536, float32 [65536]: mean 0, deviation 1.000, |z| ≤ 4.33."""
    indices = torch.arange(2**TABLE_BITS, dtype=torch.float64, device="cpu")
    return torch.special.ndtri((indices + 0.5) / 2**TABLE_BITS).float()


def normal(table: Tensor, count: int, seed: Tensor, block: Tensor, step: Tensor, attempt: Tensor) -> Tensor:
    """`count` standard normal values, float32 [count]; `count` a multiple of 8.

    seed, block, step, attempt are 0-d int64: the key is the seed's 64 bits, the counter is (element, block, step,
    attempt), so no two uses in a video share a counter.
    """
    element = torch.arange(count // VALUES_PER_CALL, device=table.device)
    words = philox((element, block & WORD, step, attempt), (seed & WORD, (seed >> 32) & WORD))
    stacked = torch.stack(words, dim=-1)  # [count / 8, 4]
    halves = torch.stack([stacked & 0xFFFF, stacked >> 16], dim=-1)
    return table.index_select(0, halves.flatten())
