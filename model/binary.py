"""Our graph as compile_cache sees it: entry points, sources, configs -> a stored binary, or a loaded runner.

The one door between the two packages. Loading reads weights by name and never builds the text encoder's module:
importing transformers takes longer than all the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compile_cache.binary import Binary
from compile_cache.compiler import find_compiler
from compile_cache.errors import CompileCacheError
from compile_cache.key import key_fields, key_of, sources_digest
from compile_cache.sources import Source, open_first
from compile_cache.specs import DimSpec, EntrySpec, constants_of, describe, dynamic
from compile_cache.store import Entry, LocalStore

from .config import ModelConfig, read_config
from .control import GRAPH
from .generator import Generate
from .pipeline import SIDE_PATCHES, Request, request_tensors
from .runner import ModuleRunner, Origin, Runner, build_modules, eager_runner, jit_runner
from .state import new_state
from .vae import decoder_caches
from .weights import hardware_dtype, load_transformer, load_vae, read_tensors, untied

GRAPH_SOURCES = ("config", "control", "generator", "noise", "schedule", "state", "transformer", "vae")
DTYPES = {"auto": None, "bfloat16": torch.bfloat16, "float32": torch.float32}
EXAMPLE_PATCHES = (8, 10)  # rows and columns the graph is traced with: unequal, so that neither stands for the other
EXAMPLE_BLOCKS = 2
MAX_ROOM = 4096  # blocks in one call


class BinaryMissing(CompileCacheError):
    """The compiled binary was asked for and no source has a usable one."""


class BinaryRunner:
    """The entry points in a loaded binary."""

    mode = "aot"

    def __init__(self, binary: Binary, dtype: torch.dtype, origin: Origin) -> None:
        self.origin = origin
        self.dtype = dtype
        self.device = binary.device
        self._binary = binary

    def run(self, entry_point: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        return self._binary.run(entry_point, tensors)


def pick_dtype(name: str) -> torch.dtype:
    """The dtype a name of DTYPES stands for on this machine."""
    return DTYPES[name] or hardware_dtype()


def open_runner(
    folder: Path | str, mode: str = "auto", dtype: str = "auto", sources: Sequence[Source] | None = None
) -> Runner:
    """What runs the model in `folder`.

    mode "auto": the first source's binary that passes every check, else eager, with the reason; never compiles.
    "aot": the binary or BinaryMissing. "eager", "jit": the modules. sources: the local store by default.
    Raises ConfigError or WeightsError, naming the file, where the folder is unusable; CompilerMissing for "jit".
    """
    folder, kind = Path(folder), pick_dtype(dtype)
    config = read_config(folder)
    if mode == "eager":
        return eager_runner(folder, config, kind, "eager was asked for")
    if mode == "jit":
        find_compiler()
        return jit_runner(folder, config, kind)
    try:
        return _open_binary(folder, config, kind, sources)
    except CompileCacheError as error:
        if mode == "aot":
            raise
        return eager_runner(folder, config, kind, str(error))


def build(
    folder: Path | str,
    store: LocalStore | None = None,
    dtype: str = "auto",
    progress: Callable[[str], None] = lambda text: None,
) -> Entry:
    """Compile the graph of the model in `folder` and store it; what is already stored is returned as it is.

    Takes minutes. The new binary has run a reference request in a process of its own before it is stored.
    Raises CompilerMissing, BuildFailed, SmokeFailed, StoreError, ConfigError or WeightsError.
    """
    from compile_cache.build import EntryPoint
    from compile_cache.produce import produce
    from compile_cache.smoke import Call

    folder, kind, store = Path(folder), pick_dtype(dtype), store or LocalStore()
    config = read_config(folder)
    modules = build_modules(folder, config, kind, GRAPH)
    shapes = dynamic_shapes(config)
    inputs = example_inputs(config, kind)
    points = [
        EntryPoint(name, modules[name], tuple(named.values()), shapes.get(name), input_names=tuple(named))
        for name, named in inputs.items()
    ]
    calls = _reference_calls(config, kind, modules)
    fields = _fields([point.spec() for point in points], config, kind)
    return produce(points, store, fields, calls=[Call(*call) for call in calls], licence=config.rollout.licence,
                   progress=progress)  # fmt: skip


def binary_key(config: ModelConfig, dtype: torch.dtype, tensors: Mapping[str, Mapping[str, Tensor]]) -> str:
    """The key of the binary for these weights on this machine, from names and shapes alone."""
    specs = []
    for name, named in example_inputs(config, dtype).items():
        dims = dynamic_shapes(config).get(name) or (None,) * len(named)
        described = tuple(describe(n, t, d) for (n, t), d in zip(named.items(), dims, strict=True))
        constants = tuple(describe(n, t) for n, t in sorted(tensors[name].items()))
        specs.append(EntrySpec(name, described, constants))
    return key_of(_fields(specs, config, dtype))


def bound_tensors(folder: Path, config: ModelConfig, dtype: torch.dtype) -> dict[str, dict[str, Tensor]]:
    """Entry point -> constant name -> tensor: the weights and tables a binary is given when it is loaded."""
    transformer = load_transformer(config, read_tensors(folder, "transformer", dtype))
    vae = load_vae(config, read_tensors(folder, "vae", dtype))
    text = untied(read_tensors(folder, "text_encoder", dtype))
    condition = {f"text_encoder.{name}": tensor for name, tensor in text.items()}
    condition |= {f"transformer.{name}": tensor for name, tensor in constants_of(transformer).items()}
    return {"condition": condition, "generate": constants_of(Generate(transformer, vae, config))}


def example_inputs(config: ModelConfig, dtype: torch.dtype) -> dict[str, dict[str, Tensor]]:
    """Entry point -> input name -> example tensor, in call order."""
    transformer, length = config.transformer, config.rollout.text_length
    height, width = (patches * config.grid for patches in EXAMPLE_PATCHES)
    state = new_state(config, height, width, dtype)
    fixed = request_tensors(config, Request("", height=height, width=width))
    frames = torch.zeros(EXAMPLE_BLOCKS, config.block_video_frames, height, width, 3, dtype=torch.uint8)
    head = (1, length, transformer.num_attention_heads, transformer.attention_head_dim)
    cross = [torch.zeros(head, dtype=dtype) for _ in state.kv]
    ids = torch.zeros(1, length, dtype=torch.int64)
    return {
        "condition": {"token_ids": ids, "mask": torch.ones_like(ids)},
        "generate": {
            "frames": frames,
            "block": state.block,
            **dict(zip(("seed", "sigmas", "timesteps", "limits"), fixed, strict=True)),
            **{f"{'kv'[i % 2]}_{i // 2}": tensor for i, tensor in enumerate(state.kv)},
            **{f"cache_{i}": tensor for i, tensor in enumerate(state.caches)},
            **{f"cross_{'kv'[i % 2]}_{i // 2}": tensor for i, tensor in enumerate(cross)},
        },
    }


def dynamic_shapes(config: ModelConfig) -> dict[str, tuple[dict[int, DimSpec] | None, ...]]:
    """What may vary between calls of `generate`: the room for blocks, and the size."""
    blocks = dynamic("blocks", 1, MAX_ROOM)
    rows, columns = (dynamic(name, *SIDE_PATCHES) for name in ("rows", "columns"))
    patch = config.transformer.patch_size[1]
    kv = [{2: rows, 3: columns}] * (2 * config.transformer.num_layers)
    scales = [patch * scale for _, scale in decoder_caches(config.vae)]
    caches = [{2: rows.times(scale), 3: columns.times(scale)} for scale in scales]
    frames = {0: blocks, 2: rows.times(config.grid), 3: columns.times(config.grid)}
    return {"generate": (frames, None, None, None, None, None, *kv, *caches, *([None] * len(kv)))}


def _open_binary(
    folder: Path, config: ModelConfig, dtype: torch.dtype, sources: Sequence[Source] | None
) -> BinaryRunner:
    started = time.perf_counter()
    tensors = bound_tensors(folder, config, dtype)
    key = binary_key(config, dtype, tensors)
    binary, found = open_first(key, [LocalStore()] if sources is None else sources, tensors)
    if binary is None or found.entry is None:
        raise BinaryMissing(f"no compiled binary {key[:12]}: {found.reason}")
    size = found.entry.manifest.package.size
    return BinaryRunner(binary, dtype, Origin(found.entry.source, key, size, time.perf_counter() - started))


def _fields(specs: Sequence[EntrySpec], config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    here = Path(__file__).parent
    described = asdict(config) | {"dtype": str(dtype).removeprefix("torch.")}
    described["rollout"] = {k: v for k, v in described["rollout"].items() if k in ("window_blocks", "sink_blocks")}
    return key_fields(
        specs,
        device="cpu",
        sources=sources_digest([here / f"{name}.py" for name in GRAPH_SOURCES]),
        config=described | {"text_encoder": dict(config.text_encoder)},
        kernels={"transformers": version("transformers")},  # its UMT5 code is part of the graph
    )


def _reference_calls(
    config: ModelConfig, dtype: torch.dtype, modules: Mapping[str, torch.nn.Module]
) -> list[tuple[str, tuple[Tensor, ...]]]:
    """An empty prompt and one block of it: what a fresh binary is tried out with, in a process of its own."""
    height, width = config.rollout.sizes[0]
    ids = torch.zeros(1, config.rollout.text_length, dtype=torch.int64)
    mask = torch.ones_like(ids)
    cross = ModuleRunner("eager", modules, dtype, Origin()).run("condition", [ids, mask])
    state = new_state(config, height, width, dtype)
    fixed = request_tensors(config, Request("", height=height, width=width))
    frames = torch.zeros(1, config.block_video_frames, height, width, 3, dtype=torch.uint8)
    generate = (frames, state.block, *fixed, *state.kv, *state.caches, *cross)
    return [("condition", (ids, mask)), ("generate", generate)]
