"""Which device and dtype a name stands for, here and where torch says that there is a GPU."""

from __future__ import annotations

import pytest
import torch

from model.config import ConfigError
from model.device import VARIABLE, pick_device, pick_dtype


@pytest.mark.parametrize(
    ("name", "variable", "gpu", "device"),
    [
        ("auto", None, False, "cpu"),
        ("auto", None, True, "cuda"),
        ("auto", " ", True, "cuda"),
        ("auto", "auto", True, "cuda"),
        ("auto", "cpu", True, "cpu"),
        ("auto", "cuda", True, "cuda"),
        ("cpu", "cuda", True, "cpu"),
        ("cuda", "cpu", True, "cuda"),
        ("cpu", "nonsense", False, "cpu"),
    ],
)
def test_the_device(monkeypatch: pytest.MonkeyPatch, name: str, variable: str | None, gpu: bool, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.delenv(VARIABLE, raising=False) if variable is None else monkeypatch.setenv(VARIABLE, variable)
    assert pick_device(name) == torch.device(device)
    assert torch.backends.cudnn.deterministic == (device == "cuda")


@pytest.mark.parametrize(
    ("name", "variable", "words"),
    [
        ("cuda", "cpu", "cuda was asked for, and torch finds no GPU here"),
        ("auto", "cuda", "cuda was asked for"),
        ("auto", "gpu", "ONEGRAPH_DEVICE, the device, is 'gpu'; auto, cpu, cuda are allowed"),
        ("mps", "cpu", "the device is 'mps'"),
    ],
)
def test_what_is_no_device_here(monkeypatch: pytest.MonkeyPatch, name: str, variable: str, words: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv(VARIABLE, variable)
    with pytest.raises(ConfigError, match=words):
        pick_device(name)


def test_the_dtype() -> None:
    assert pick_dtype("auto", "cuda") == torch.bfloat16
    assert pick_dtype("float32", "cuda") == torch.float32
    assert pick_dtype("auto") in (torch.bfloat16, torch.float32)
