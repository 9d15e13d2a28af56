"""Philox against the published vectors of Random123, and the normals against their distribution."""

import pytest
import torch

from model.noise import normal, normal_table, philox

# kat_vectors of Random123: counter, key, expected words.
VECTORS = [
    ((0,) * 4, (0,) * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def scalar(value: int) -> torch.Tensor:
    return torch.tensor(value)


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: str) -> None:
    words = philox(tuple(map(scalar, counter)), tuple(map(scalar, key)))
    assert " ".join(f"{int(word):08x}" for word in words) == expected


def draw(seed: int = 1, block: int = 0, step: int = 0, attempt: int = 0, count: int = 2**17) -> torch.Tensor:
    return normal(normal_table(), count, scalar(seed), scalar(block), scalar(step), scalar(attempt))


def test_normals_are_standard() -> None:
    values = draw().double()
    assert abs(values.mean().item()) < 0.01
    assert abs(values.std().item() - 1) < 0.01
    assert abs((values**4).mean().item() - 3) < 0.1
    assert abs((values[:-1] * values[1:]).mean().item()) < 0.01


@pytest.mark.parametrize("change", [dict(seed=2), dict(seed=1 + 2**32), dict(seed=2**63 - 1), dict(block=1),
                                    dict(step=1), dict(attempt=1), dict(block=2**31)])  # fmt: skip
def test_every_coordinate_changes_the_values(change: dict[str, int]) -> None:
    assert torch.equal(draw(), draw())
    same = (draw() == draw(**change)).double().mean().item()
    assert same < 0.01  # 65,536 equally likely values: one in 65,536 agrees by chance


def test_more_values_extend_fewer() -> None:
    assert torch.equal(draw(count=64), draw(count=256)[:64])
