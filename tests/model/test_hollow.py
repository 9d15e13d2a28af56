"""Models without values: Wan 2.1 1.3B exports without memory, and nothing of a graph lands on another device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from model import state
from model.binary import EXAMPLE_BLOCKS, MAX_ROOM
from model.config import ModelConfig, read_config
from model.control import Control
from model.hollow import Hollow, hollow
from model.pipeline import MAX_BLOCKS
from model.published.presets import WAN_1_3B
from tests.benchmarks.export import export, shortened
from tests.benchmarks.resident import from_here, status
from tests.conftest import EMBEDDED
from tests.fixtures.folders import make_folder

DIRECT = {
    Tensor.__invert__: torch.ops.aten.bitwise_not,
    Tensor.contiguous: torch.ops.aten.contiguous,
    Tensor.copy_: torch.ops.aten.copy_,
}


class Bindings(TorchFunctionMode):
    """Fake CUDA tensors on a torch that was built without CUDA.

    A few methods of tensors ask for the device's driver before they come to the operator, which would not: those go
    to the operator at once.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is Tensor.__getitem__:
            return indexed(*args)
        return DIRECT.get(func, func)(*args, **(kwargs or {}))


def indexed(x: Tensor, index: Any) -> Tensor:
    index = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, Tensor) for part in index):
        return torch.ops.aten.index.Tensor(x, list(index))
    if Ellipsis in index:
        at, taken = index.index(Ellipsis), sum(part is not None and part is not Ellipsis for part in index)
        index = (*index[:at], *[slice(None)] * (x.ndim - taken), *index[at + 1 :])
    dim = 0
    for part in index:
        if isinstance(part, int):
            x = x.select(dim, part)
            continue
        if part is None:
            x = x.unsqueeze(dim)
        elif part != slice(None):
            x = torch.ops.aten.slice(x, dim, part.start, part.stop, part.step or 1)
        dim += 1
    return x


class Placed(TorchDispatchMode):
    """No operator gives a tensor that is not on the device. One that mixes devices fails by itself."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.operators = device, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        self.operators += 1
        for tensor in tree_leaves(made):
            assert not isinstance(tensor, Tensor) or tensor.device.type == self.device, f"{func} on {tensor.device}"
        return made


def both_ways(flag, then, otherwise, operands):
    otherwise(*operands)
    return then(*operands)


def once(go_on, body, carry):
    go_on(*carry)
    return body(*carry)


# Fake tensors decide nothing: every piece of the graph, once.
EVERYTHING = Control(loop=once, branch=both_ways, size=lambda count, most: most)


def on_cuda(folder: Path, **rollout: Any) -> Hollow:
    config = read_config(folder)
    config = replace(config, rollout=replace(config.rollout, **rollout))
    return hollow(config, 64, 96, device="cuda", dtype=torch.bfloat16, control=EVERYTHING)


def run(model: Hollow, entry: str) -> int:
    with torch.no_grad(), model.mode, Placed("cuda") as placed, Bindings():
        model.modules[entry](*model.inputs[entry].values())
    return placed.operators


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "random")


@pytest.mark.parametrize("entry", ["condition", "generate"])
def test_everything_stays_on_the_device(folder: Path, entry: str) -> None:
    assert run(on_cuda(folder, sink_blocks=1), entry) > 50


def test_a_table_left_on_the_cpu_is_noticed(folder: Path) -> None:
    model = on_cuda(folder)
    with model.mode:
        model.modules["generate"].normals = torch.empty(2**16)
    with pytest.raises((AssertionError, RuntimeError), match="cpu"):
        run(model, "generate")


def test_a_counter_made_on_the_cpu_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the operator would take it, as those of one element are taken."""
    plain = state.ring_view
    monkeypatch.setattr("model.generator.ring_view", lambda *a: [torch.zeros((), dtype=torch.int64), plain(*a)][1])
    with pytest.raises(AssertionError, match="on cpu"):
        run(on_cuda(folder), "generate")


@pytest.fixture(scope="module")
def wan() -> ModelConfig:
    """Wan 2.1 1.3B in all its widths, but two layers deep, with a sink."""
    config = shortened(read_config(WAN_1_3B), 2)
    return replace(config, rollout=replace(config.rollout, sink_blocks=1))


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")
def test_full_widths_export_once_for_all_sizes_and_lengths_without_memory(wan: ModelConfig) -> None:
    """See tests/benchmarks/export.py for the whole depth."""
    hollow(read_config(EMBEDDED), 64, 64)
    torch.export.export(torch.nn.Identity(), (torch.ones(1),), strict=True)  # with this, all is imported
    before = from_here()
    model = hollow(wan, *wan.rollout.sizes[0], room=EXAMPLE_BLOCKS)
    assert sum(p.numel() for p in model.parts["text_encoder"].parameters()) > 1e9
    condition, generate = (export(model, entry, dynamic=True) for entry in ("condition", "generate"))
    assert (status("VmHWM") - before) / 1e6 < 500  # the weights alone would be 4,000
    assert "while_loop" in str(generate.program.graph)
    assert condition.operators > 100
    assert generate.operators > 1000
    assert wan.rollout.sizes == ((480, 832), (832, 480), (320, 576))
    program = generate.program.module()

    def takes(height: int, width: int, room: int = 1) -> dict[str, tuple[int, ...]]:
        """By the program's own checks; on fake tensors it computes shapes. Returns those of all but the frames."""
        sized = hollow(wan, height, width, room=room)
        given = sized.inputs["generate"]
        with torch.no_grad(), sized.mode:
            block, _ = program(*given.values())
            program(*(given | {"block": block}).values())  # the video goes on from there
        return {name: tuple(tensor.shape) for name, tensor in given.items() if name != "frames"}

    for size in wan.rollout.sizes:
        takes(*size)
    shapes = takes(480, 832)
    assert shapes["k_0"] == shapes["v_1"] == (1 + 7, 3, 30, 52, 12, 128)  # sink and window, and nothing beside them
    assert all(takes(480, 832, room) == shapes for room in (7, MAX_BLOCKS))
    with pytest.raises(AssertionError, match="<= 1024"):
        takes(65 * 16, 480)  # beyond the largest side
    with pytest.raises(AssertionError, match=f"<= {MAX_ROOM}"):
        takes(480, 832, MAX_ROOM + 1)
