"""What the name of a precision stands for, here and on GPUs of several generations."""

from __future__ import annotations

import pytest
import torch

from model.config import ConfigError
from model.device import pick_dtype
from model.precision import VARIABLE, Precision, pick_precision

HERE = pick_dtype("auto", "cpu")


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A GPU of the capability in the test's parameters, if there is one."""
    capability = getattr(request.node, "callspec", None) and request.node.callspec.params.get("capability")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("name", "variable", "device", "capability", "expected"),
    [
        ("auto", None, "cpu", None, (HERE, None)),
        ("auto", None, "cuda", (8, 0), (torch.bfloat16, None)),
        ("auto", " ", "cpu", None, (HERE, None)),
        ("auto", "auto", "cpu", None, (HERE, None)),
        ("auto", "float32", "cpu", None, (torch.float32, None)),
        ("auto", "int8", "cpu", None, (HERE, "int8")),
        ("float32", "int8", "cpu", None, (torch.float32, None)),
        ("bfloat16", None, "cpu", None, (torch.bfloat16, None)),
        ("int8", None, "cuda", (8, 0), (torch.bfloat16, "int8")),
        ("fp8", None, "cuda", (8, 9), (torch.bfloat16, "fp8")),
        ("fp8", None, "cuda", (9, 0), (torch.bfloat16, "fp8")),
        ("fp8", None, "cuda", (12, 0), (torch.bfloat16, "fp8")),
    ],
)
def test_what_a_name_stands_for(monkeypatch, name, variable, device, capability, expected):
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)
    dtype, linear = expected
    wanted = linear or str(dtype).removeprefix("torch.")
    assert pick_precision(name, device) == Precision(wanted, dtype, linear)


@pytest.mark.parametrize(
    ("name", "variable", "device", "capability", "words"),
    [
        ("fp8", None, "cpu", None, "fp8 needs a GPU of capability 8.9 or more, and the device is a CPU"),
        ("auto", "fp8", "cpu", None, "fp8 needs a GPU of capability 8.9 or more"),
        ("fp8", None, "cuda", (8, 0), "and the device is a GPU of capability 8.0"),
        ("int4", "int8", "cpu", None, "the precision is 'int4'; auto, bfloat16, float32, int8, fp8 are allowed"),
        ("auto", "half", "cpu", None, "ONEGRAPH_PRECISION, the precision, is 'half'; auto"),
    ],
)
def test_what_is_no_precision_here(monkeypatch, name, variable, device, capability, words):
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)
    with pytest.raises(ConfigError, match=words):
        pick_precision(name, device)
