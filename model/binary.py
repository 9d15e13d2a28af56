"""Our graph as compile_cache sees it: entry points, sources, configs -> a stored binary, or a loaded runner.

The one door between the two packages. Loading binds weights by name and never builds the text encoder's module:
importing transformers takes longer than all the rest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
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
from compile_cache.sources import Resolution, Source, find_first, open_first
from compile_cache.specs import DimSpec, EntrySpec, describe, dynamic
from compile_cache.store import Entry, LocalStore

from . import reference
from .config import ModelConfig
from .parts import Parts, load_parts
from .pipeline import SIDE_PATCHES, Request, generate_inputs, request_tensors
from .runner import Named, Origin, Runner, eager_runner, jit_runner
from .state import new_state
from .vae import decoder_caches

# What defines the graph, and what defines the calls that its binary is proven with.
GRAPH_SOURCES = ("config", "control", "generator", "noise", "reference", "schedule", "state", "transformer", "vae",
                 "vae_layers")  # fmt: skip
QUANTISED_SOURCES = ("quantised",)  # as well, where the precision has quantised layers
# How far a binary may be from eager on the reference calls (relative L2, see compile_cache.eager). Measured with the
# embedded model: 1.3e-2 in bfloat16, of which one rounding is up to 4e-3; 2e-5 in float32, where a few pixels round the
# other way, and all that is not a frame agrees to 8e-7. Another value for any one of the 275 weights in use moves the
# results by 2.4e-3 or more in float32; in bfloat16 by more than 0.05 for 217 of them.
# With int8 layers in bfloat16 1.1e-2, and 58 of their 96 weights and scales in `generate` move the results by more than
# 0.05, the rest by 1.1e-2 or more; fp8 was not run and rounds more coarsely.
TOLERANCES = {"bfloat16": 0.05, "float32": 1e-3, "int8": 0.05, "fp8": 0.1}
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


def open_runner(
    folder: Path | str,
    mode: str = "auto",
    precision: str = "auto",
    sources: Sequence[Source] | None = None,
    device: str = "auto",
) -> Runner:
    """What runs the model in `folder`, for a process that wants nothing else of it; see `open_parts`, `load_parts`."""
    return open_parts(load_parts(folder, precision, device), mode, sources)


def open_parts(
    parts: Parts,
    mode: str = "auto",
    sources: Sequence[Source] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Runner:
    """What runs the model.

    mode "auto": the first source's binary that passes every check, else eager, with the reason; never compiles.
    "aot": the binary or BinaryMissing. "eager", "jit": the modules. sources: the local store by default.
    fields: of the binary's key, where it is to run elsewhere; by default those of this process.
    Raises ConfigError or WeightsError where the text encoder is unusable; CompilerMissing for "jit".
    """
    if mode == "eager":
        return eager_runner(parts, "eager was asked for")
    if mode == "jit":
        find_compiler()
        return jit_runner(parts)
    started, key = time.perf_counter(), key_of(fields or binary_fields(parts))
    try:
        binary, found = open_first(key, _or_store(sources), parts.constants(), device=parts.device)
        if binary is None:
            raise BinaryMissing(key, found.reason)
        return BinaryRunner(binary, parts.dtype, _origin(found, time.perf_counter() - started))
    except CompileCacheError as error:
        if mode == "aot":
            raise
        return eager_runner(parts, why(error))


def name_parts(
    parts: Parts,
    sources: Sequence[Source] | None = None,
    fields: Mapping[str, Any] | None = None,
    *,
    tried: bool = True,
) -> Named:
    """The same for a process that has not got the device: the binary is found and verified, but not opened.

    tried: whether what `sources` hand out has had its trial run. Raises BinaryMissing.
    """
    started, key = time.perf_counter(), key_of(fields or binary_fields(parts))
    found = find_first(key, _or_store(sources))
    if found.entry is None:
        raise BinaryMissing(key, found.reason)
    return Named("aot", parts, _origin(found, time.perf_counter() - started), tried=tried)


def build(
    parts: Parts,
    store: LocalStore | None = None,
    progress: Callable[[str], None] = lambda text: None,
    environment: Mapping[str, Any] | None = None,
) -> Entry:
    """Compile the graph of these parts and store it; what is already stored is returned as it is.

    environment: of its key, where that of this process is to be called by another name.
    Takes minutes. Before the new binary is stored, it has given on the reference calls what the modules give eagerly.
    Raises CompilerMissing, BuildFailed, SmokeFailed, StoreError, ConfigError or WeightsError.
    """
    from compile_cache.entry import EntryPoint
    from compile_cache.produce import produce

    store = store or LocalStore()
    config, graph, shapes = parts.config, parts.graph(), dynamic_shapes(parts.config)
    # The graph's loop compiles itself when it is called, so it is compared with its form in plain Python.
    twins = {"generate": parts.generate}
    points = [
        EntryPoint(name, graph[name], tuple(named.values()), shapes.get(name), tuple(named), twins.get(name))
        for name, named in example_inputs(config, parts.dtype, parts.device).items()
    ]
    fields = _fields([point.spec() for point in points], parts)
    fields |= {"environment": environment or fields["environment"]}
    calls = reference_calls(config, parts.dtype)
    publisher = os.environ.get("SPACE_ID", "")  # set in a Space: who built it, not a proof of that
    return produce(points, store, fields, calls, tolerance=TOLERANCES[parts.precision.name], publisher=publisher,
                   licence=config.rollout.licence, progress=progress)  # fmt: skip


def reference_calls(config: ModelConfig, dtype: torch.dtype) -> list[Call]:
    """What a binary of this model is proven with (see reference.py); needs no weights and takes milliseconds."""
    return [Call(*call) for call in reference.calls(config, dtype)]


def binary_fields(parts: Parts) -> dict[str, Any]:
    """The fields of the key of the binary for these parts on this machine, in clear: names and shapes, no values."""
    place, specs, constants = parts.device.type, [], parts.constants()
    for name, named in example_inputs(parts.config, parts.dtype, "meta").items():
        dims = dynamic_shapes(parts.config).get(name) or (None,) * len(named)
        inputs = [describe(n, t, d) for (n, t), d in zip(named.items(), dims, strict=True)]
        weights = [describe(n, t) for n, t in sorted(constants[name].items())]
        specs.append(EntrySpec(name, *(tuple(replace(s, device=place) for s in group) for group in (inputs, weights))))
    return _fields(specs, parts)


def example_inputs(config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> dict[str, dict[str, Tensor]]:
    """Entry point -> input name -> example tensor, in call order."""
    transformer, length = config.transformer, config.rollout.text_length
    height, width = (patches * config.grid for patches in EXAMPLE_PATCHES)
    state = new_state(config, height, width, dtype, device)
    fixed = [tensor.to(device) for tensor in request_tensors(config, Request("", height=height, width=width))]
    size = (EXAMPLE_BLOCKS, config.block_video_frames, height, width, 3)
    head = (1, length, transformer.num_attention_heads, transformer.attention_head_dim)
    cross = [torch.zeros(head, dtype=dtype, device=device) for _ in state.kv]
    ids = torch.zeros(1, length, dtype=torch.int64, device=device)
    frames = torch.zeros(size, dtype=torch.uint8, device=device)
    return {
        "condition": {"token_ids": ids, "mask": torch.ones_like(ids)},
        "generate": generate_inputs(frames, state, fixed, cross),
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


def _or_store(sources: Sequence[Source] | None) -> Sequence[Source]:
    return [LocalStore()] if sources is None else sources


def _origin(found: Resolution, seconds: float) -> Origin:
    manifest = found.entry.manifest
    passed_over = "; ".join(str(attempt) for attempt in found.tried if attempt.outcome != "hit") or None
    return Origin(found.entry.source, found.key, manifest.package.size, seconds, passed_over, _told(manifest))


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


def _fields(specs: Sequence[EntrySpec], parts: Parts) -> dict[str, Any]:
    here, config, names = Path(__file__).parent, parts.config, GRAPH_SOURCES
    described = asdict(config) | {"dtype": str(parts.dtype).removeprefix("torch.")}
    described["rollout"] = {k: v for k, v in described["rollout"].items() if k in ("window_blocks", "sink_blocks")}
    if parts.precision.linear:  # else they are as they were before there was a choice
        described, names = described | {"precision": parts.precision.name}, names + QUANTISED_SOURCES
    return key_fields(
        specs,
        device=parts.device,
        sources=sources_digest([here / f"{name}.py" for name in names]),
        config=described | {"text_encoder": dict(config.text_encoder)},
        kernels={"transformers": version("transformers")},  # its UMT5 code is part of the graph
    )
