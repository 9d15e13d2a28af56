"""Our graph as compile_cache sees it: entry points, sources, configs -> a stored binary, or a loaded runner.

The one door between the two packages. Loading reads weights by name and never builds the text encoder's module:
importing transformers takes longer than all the rest.
"""

from __future__ import annotations

import os
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
from compile_cache.manifest import Manifest
from compile_cache.proof import Call
from compile_cache.sources import Source, open_first
from compile_cache.specs import DimSpec, EntrySpec, constants_of, describe, dynamic
from compile_cache.store import Entry, LocalStore

from . import reference
from .config import ModelConfig, read_config
from .control import GRAPH, PYTHON
from .generator import Generate
from .pipeline import SIDE_PATCHES, Request, request_tensors
from .runner import Origin, Runner, build_modules, eager_runner, jit_runner
from .state import new_state
from .vae import decoder_caches
from .weights import hardware_dtype, load_transformer, load_vae, read_tensors, untied

# What defines the graph, and what defines the calls that its binary is proven with.
GRAPH_SOURCES = ("config", "control", "generator", "noise", "reference", "schedule", "state", "transformer", "vae",
                 "vae_layers")  # fmt: skip
DEVICE = "cpu"
DTYPES = {"auto": None, "bfloat16": torch.bfloat16, "float32": torch.float32}
# How far a binary may be from eager on the reference calls (relative L2, see compile_cache.eager). Measured with the
# embedded model: 1.3e-2 in bfloat16, of which one rounding is up to 4e-3; 2e-5 in float32, where a few pixels round the
# other way, and all that is not a frame agrees to 8e-7. Another value for any one of the 275 weights in use moves the
# results by 2.4e-3 or more in float32; in bfloat16 by more than 0.05 for 217 of them.
TOLERANCES = {torch.bfloat16: 0.05, torch.float32: 1e-3}
EXAMPLE_PATCHES = (8, 10)  # rows and columns the graph is traced with: unequal, so that neither stands for the other
EXAMPLE_BLOCKS = 2
MAX_ROOM = 4096  # blocks in one call


class BinaryMissing(CompileCacheError):
    """The compiled binary was asked for and no source has a usable one; `reason`: what each of them had."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"no compiled binary {key[:12]}: {reason}")
        self.reason = reason


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

    def weights(self) -> list[Tensor]:
        return self._binary.weights()


def why(error: CompileCacheError) -> str:
    """Why there is no binary, without the key."""
    return error.reason if isinstance(error, BinaryMissing) else str(error)


def pick_dtype(name: str) -> torch.dtype:
    """The dtype a name of DTYPES stands for on this machine."""
    return DTYPES[name] or hardware_dtype()


def open_runner(
    folder: Path | str,
    mode: str = "auto",
    dtype: str = "auto",
    sources: Sequence[Source] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> Runner:
    """What runs the model in `folder`.

    mode "auto": the first source's binary that passes every check, else eager, with the reason; never compiles.
    "aot": the binary or BinaryMissing. "eager", "jit": the modules. sources: the local store by default.
    environment: of the binary's key, where it is to run elsewhere; by default that of this process.
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
        return _open_binary(folder, config, kind, sources, environment)
    except CompileCacheError as error:
        if mode == "aot":
            raise
        return eager_runner(folder, config, kind, why(error))


def build(
    folder: Path | str,
    store: LocalStore | None = None,
    dtype: str = "auto",
    progress: Callable[[str], None] = lambda text: None,
) -> Entry:
    """Compile the graph of the model in `folder` and store it; what is already stored is returned as it is.

    Takes minutes. Before the new binary is stored, it has given on the reference calls what the modules give eagerly.
    Raises CompilerMissing, BuildFailed, SmokeFailed, StoreError, ConfigError or WeightsError.
    """
    from compile_cache.entry import EntryPoint
    from compile_cache.produce import produce

    folder, kind, store = Path(folder), pick_dtype(dtype), store or LocalStore()
    config = read_config(folder)
    modules = build_modules(folder, config, kind, GRAPH)
    graph = modules["generate"]
    # The graph's loop compiles itself when it is called, so it is compared with its form in plain Python.
    twins = {"generate": Generate(graph.transformer, graph.vae, config, PYTHON).eval()}
    shapes = dynamic_shapes(config)
    points = [
        EntryPoint(name, modules[name], tuple(named.values()), shapes.get(name), tuple(named), twins.get(name))
        for name, named in example_inputs(config, kind).items()
    ]
    fields = _fields([point.spec() for point in points], config, kind)
    calls = reference_calls(config, kind)
    publisher = os.environ.get("SPACE_ID", "")  # set in a Space: who built it, not a proof of that
    return produce(points, store, fields, calls, tolerance=TOLERANCES[kind], publisher=publisher,
                   licence=config.rollout.licence, progress=progress)  # fmt: skip


def reference_calls(config: ModelConfig, dtype: torch.dtype) -> list[Call]:
    """What a binary of this model is proven with (see reference.py); needs no weights and takes milliseconds."""
    return [Call(*call) for call in reference.calls(config, dtype)]


def binary_key(config: ModelConfig, dtype: torch.dtype, tensors: Mapping[str, Mapping[str, Tensor]]) -> str:
    """The key of the binary for these weights on this machine, from names and shapes alone."""
    return key_of(binary_fields(config, dtype, tensors))


def binary_fields(
    config: ModelConfig, dtype: torch.dtype, tensors: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Any]:
    """The fields of that key, in clear."""
    specs = []
    for name, named in example_inputs(config, dtype).items():
        dims = dynamic_shapes(config).get(name) or (None,) * len(named)
        described = tuple(describe(n, t, d) for (n, t), d in zip(named.items(), dims, strict=True))
        constants = tuple(describe(n, t) for n, t in sorted(tensors[name].items()))
        specs.append(EntrySpec(name, described, constants))
    return _fields(specs, config, dtype)


def fields_of(folder: Path | str, dtype: str = "auto") -> dict[str, Any]:
    """The same for a model folder. Raises ConfigError or WeightsError."""
    config, kind = read_config(folder), pick_dtype(dtype)
    return binary_fields(config, kind, bound_tensors(Path(folder), config, kind))


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
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    sources: Sequence[Source] | None,
    environment: Mapping[str, Any] | None,
) -> BinaryRunner:
    started = time.perf_counter()
    tensors = bound_tensors(folder, config, dtype)
    fields = binary_fields(config, dtype, tensors)
    key = key_of(fields if environment is None else fields | {"environment": environment})
    binary, found = open_first(key, [LocalStore()] if sources is None else sources, tensors)
    if binary is None or found.entry is None:
        raise BinaryMissing(key, found.reason)
    manifest, seconds = found.entry.manifest, time.perf_counter() - started
    passed_over = "; ".join(str(attempt) for attempt in found.tried if attempt.outcome != "hit") or None
    origin = Origin(found.entry.source, key, manifest.package.size, seconds, passed_over, _told(manifest))
    return BinaryRunner(binary, dtype, origin)


def _told(manifest: Manifest) -> dict[str, Any]:
    """What people want to know of a build; JSON-able."""
    return {
        "built_at": manifest.built_at,
        "build_seconds": round(manifest.seconds, 1),
        "publisher": manifest.publisher or None,
        "compiler": manifest.compiler,
        "licence": manifest.licence or None,
        "sha256": manifest.package.sha256,
        "reference": manifest.reference,
        "fields": dict(manifest.fields),
    }


def _fields(specs: Sequence[EntrySpec], config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    here = Path(__file__).parent
    described = asdict(config) | {"dtype": str(dtype).removeprefix("torch.")}
    described["rollout"] = {k: v for k, v in described["rollout"].items() if k in ("window_blocks", "sink_blocks")}
    return key_fields(
        specs,
        device=DEVICE,
        sources=sources_digest([here / f"{name}.py" for name in GRAPH_SOURCES]),
        config=described | {"text_encoder": dict(config.text_encoder)},
        kernels={"transformers": version("transformers")},  # its UMT5 code is part of the graph
    )
