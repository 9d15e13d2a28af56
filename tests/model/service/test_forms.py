"""What people type becomes a request or a plain refusal; a request becomes settings, links and names and back."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import pytest

from model.pipeline import Request, RequestError
from model.service.forms import file_name, link_of, random_seed, read_request, read_size, settings_of, whole_number


def read(**changes: Any) -> Request:
    values = {"prompt": "a red circle", "seed": 7, "blocks": 3, "size": "64x96", "steps": 2} | changes
    return read_request(**values, max_blocks=40, default_size=(128, 128))


@pytest.mark.parametrize("value", [7, 7.0, "7", " 7 ", "+7", "007"])
def test_whole_numbers(value: Any) -> None:
    assert whole_number("seed", value, 0, 10) == 7


@pytest.mark.parametrize(
    "value", [-1, 11, "abc", "", "7.5", 7.5, float("nan"), float("inf"), True, None, [7], {}, "٧", "9" * 5000]
)
def test_other_numbers_are_refused_by_name(value: Any) -> None:
    with pytest.raises(RequestError, match="The seed must be a whole number from 0 to 10"):
        whole_number("seed", value, 0, 10)


@pytest.mark.parametrize("value", ["64x96", "64X96", " 64 × 96 ", [64, 96], (64, 96)])
def test_sizes_are_height_by_width(value: Any) -> None:
    assert read_size(value) == (64, 96)


@pytest.mark.parametrize("value", ["", "large", "64", "64x", "-64x96", "64x96x3", [64], [64, 96, 3], 64, None, {}])
def test_other_sizes_are_refused(value: Any) -> None:
    with pytest.raises(RequestError, match="size must be"):
        read_size(value)


def test_a_whole_form() -> None:
    assert read() == Request("a red circle", 7, 3, 64, 96, 2)
    assert (read(size="").height, read(size=None).width) == (128, 128)
    assert 0 <= read(seed="").seed < 2**31
    assert len({read(seed=None).seed for _ in range(8)} | {random_seed()}) > 4
    for wrong in ({"prompt": None}, {"prompt": 5}, {"seed": "x"}, {"blocks": 41}, {"blocks": 0}, {"steps": 0}):
        with pytest.raises(RequestError):
            read(**wrong)


def test_settings_and_links_lead_back() -> None:
    request = read(prompt="50% red & blue? שלום 🦊 #1", seed=2**63 - 1)
    assert read(**settings_of(request)) == request
    assert read(**dict(parse_qsl(link_of(request).removeprefix("?")))) == request


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("A red Circle, moving!", "onegraph-a-red-circle-moving-seed7.mp4"),
        ("../../etc/passwd\0", "onegraph-etc-passwd-seed7.mp4"),
        ("שלום 🦊", "onegraph-seed7.mp4"),
        ("x" * 1000, f"onegraph-{'x' * 40}-seed7.mp4"),
    ],
)
def test_file_names_are_harmless(prompt: str, name: str) -> None:
    assert file_name(read(prompt=prompt)) == name
