"""Modules and example inputs -> one package file, by torch.export and AOTInductor.

Everything slow and everything that imports the compiler is here. This file knows nothing of keys,
manifests or stores; `produce` puts them together.
"""

from __future__ import annotations

import shutil
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from compile_cache import elf, scratch
from compile_cache.compiler import compiler_version, find_compiler
from compile_cache.entry import EntryPoint, export_shapes
from compile_cache.errors import BuildFailed
from compile_cache.manifest import LARGEST_LITERAL, EntryFigures, Literal
from compile_cache.members import KEPT_SUFFIXES
from compile_cache.options import DEFAULTS, FIXED, effective_options
from compile_cache.settled import settled
from compile_cache.specs import constants_of, unique_prefixes

Progress = Callable[[str], None]


@dataclass(frozen=True)
class BuildFigures:
    """What a build gave. bound and literals as in the manifest."""

    entries: Mapping[str, EntryFigures]
    bound: Mapping[str, tuple[str, ...]]
    literals: Mapping[str, Mapping[str, Literal]]
    compiler: str


def build_package(
    entry_points: Sequence[EntryPoint],
    out_path: Path,
    options: Mapping[str, Any] | None = None,
    progress: Progress = lambda text: None,
) -> BuildFigures:
    """Exports and compiles every entry point and writes them as one .pt2 to `out_path` (replaced if there).

    The package holds libraries and metadata only: no weights, no sources, no paths of this machine.
    options: overrides as for `effective_options`, which depend on the device of the example inputs.
    Minutes of work, in this process. Raises CompilerMissing or BuildFailed.
    """
    specs = {entry.name: entry.spec() for entry in entry_points}
    if len(specs) != len(entry_points) or not specs:
        raise BuildFailed("a package needs at least one entry point, each with its own name")
    if unique_prefixes(specs):
        raise BuildFailed(f"the entry point name {unique_prefixes(specs)[0]} is the beginning of another one")
    for entry in entry_points:
        _check_example(entry)
    compiler = find_compiler()
    version = compiler_version(compiler)
    files: dict[str, list[str]] = {}
    figures: dict[str, EntryFigures] = {}
    bound: dict[str, tuple[str, ...]] = {}
    literals: dict[str, dict[str, Literal]] = {}
    try:
        with settled(), scratch.folder() as work:
            for entry in entry_points:
                built = _build_entry(entry, options, compiler, work / entry.name, progress)
                files[entry.name], figures[entry.name], bound[entry.name], literals[entry.name] = built
            progress("packing")
            _pack(files, out_path, work)
    except OSError as error:
        raise BuildFailed(f"building: {error.strerror or error} ({error.filename or out_path})") from error
    return BuildFigures(figures, bound, literals, version)


def _check_example(entry: EntryPoint) -> None:
    named = {**dict(zip(entry.names, entry.args, strict=True)), **constants_of(entry.module)}
    for name, tensor in named.items():
        if tensor.is_meta:
            raise BuildFailed(f"{entry.name}: {name} is a meta tensor; a build needs real ones")
        if not tensor.is_contiguous() or (tensor.numel() == 0 and name in entry.names):
            raise BuildFailed(f"{entry.name}: {name} must be contiguous and, as an input, not empty")
    if entry.twin is not None:
        own, twins = ({n: t.shape for n, t in constants_of(m).items()} for m in (entry.module, entry.twin))
        unlike = sorted(name for name in {*own, *twins} if own.get(name) != twins.get(name))
        if unlike:
            raise BuildFailed(f"{entry.name}: its twin has other weights than its module, for example {unlike[0]}")


def _build_entry(
    entry: EntryPoint, options: Mapping[str, Any] | None, compiler: str, work: Path, progress: Progress
) -> tuple[list[str], EntryFigures, tuple[str, ...], dict[str, Literal]]:
    import torch._inductor
    import torch.fx.experimental._config as shape_config

    device = entry.args[0].device if entry.args else torch.device("cpu")
    flat_dims = [dim for spec in entry.spec().inputs for dim in spec.shape if not isinstance(dim, int)]
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if any(dim.least < 2 for dim in flat_dims):
            # torch takes every dynamic size for 2 or more unless told not to reason that way.
            stack.enter_context(shape_config.patch(backed_size_oblivious=True))
        progress(f"exporting {entry.name}")
        started = time.monotonic()
        try:
            program = torch.export.export(entry.module, entry.args, dynamic_shapes=export_shapes(entry), strict=True)
            graph = program.module()
            literals = _name_literals(entry.name, graph, program.constants)
        except BuildFailed:
            raise
        except Exception as error:
            raise BuildFailed(f"exporting {entry.name}: {_short(error)}") from error
        exported = time.monotonic()
        ops = count_ops(program.graph_module)
        progress(f"compiling {entry.name} ({sum(ops.values())} operators)")
        try:
            made = torch._inductor.aot_compile(graph, entry.args, {}, options=_known_options(device, options, compiler))
        except Exception as error:
            raise BuildFailed(f"compiling {entry.name}: {_short(error)}") from error
    if any(not isinstance(item, str) for item in made):
        raise BuildFailed(f"compiling {entry.name}: the compiler handed out weights although told not to")
    files = _tidy(made, work)
    finished = time.monotonic()
    names = _bound_names(entry, files, literals)
    figures = EntryFigures(round(exported - started, 3), round(finished - exported, 3), sum(ops.values()), ops)
    used = {name: literal for name, literal in literals.items() if name in names}
    return files, figures, tuple(name for name in names if name not in literals), used


def _name_literals(entry: str, graph: nn.Module, constants: Mapping[str, Any]) -> dict[str, Literal]:
    """Turns tensors that the code spells out into buffers of `graph`, so that the binary knows their names."""
    literals = {}
    for name, tensor in constants.items():
        if not isinstance(tensor, Tensor):
            raise BuildFailed(f"{entry}: {name} is a {type(tensor).__name__}; only tensors can be bound")
        owner_name, _, leaf = name.rpartition(".")
        owner = graph.get_submodule(owner_name)
        if leaf in owner._buffers:  # a non-persistent buffer: bound by the caller like any other weight
            continue
        if tensor.numel() > LARGEST_LITERAL:
            raise BuildFailed(
                f"{entry}: the code holds a tensor of shape {list(tensor.shape)} ({name}) that is neither a "
                "parameter nor a buffer. Register it as a buffer (persistent or not), or pass it as an input."
            )
        delattr(owner, leaf)
        owner.register_buffer(leaf, tensor.contiguous(), persistent=False)
        literals[name] = Literal.of(tensor)
    return literals


def _known_options(device: torch.device, options: Mapping[str, Any] | None, compiler: str) -> dict[str, Any]:
    from torch._inductor import config

    known = config.get_config_copy()
    wanted = effective_options(device, options)
    unknown = sorted(name for name in wanted if name not in known and name not in {**DEFAULTS, **FIXED})
    if unknown:
        raise BuildFailed(f"this torch has no compiler option {unknown[0]}")
    return {**{name: value for name, value in wanted.items() if name in known}, "cpp.cxx": (None, compiler)}


def _tidy(made: Sequence[str], work: Path) -> list[str]:
    """Copies what a package needs into `work` and cleans the library. Returns the copies' paths."""
    work.mkdir()
    kept = []
    for source in map(Path, made):
        if source.name.endswith(KEPT_SUFFIXES) and not source.name.endswith(".kernel_metadata.json"):
            copy = work / source.name
            shutil.copyfile(source, copy)
            if copy.suffix == ".so":
                elf.clear_execstack(copy)
                torch_home = str(Path(torch.__file__).parent.parent)
                elf.mask_paths(copy, [str(source.parent), torch_home, str(Path.home())])
            kept.append(str(copy))
    return sorted(kept)


def _bound_names(entry: EntryPoint, files: Sequence[str], literals: Mapping[str, Literal]) -> tuple[str, ...]:
    """The weights that the binary wants, asked from the library itself."""
    with scratch.folder() as folder:
        inside = folder / "p" / "data" / "aotinductor" / entry.name
        inside.mkdir(parents=True)
        for file in files:
            shutil.copyfile(file, inside / Path(file).name)
        loader = torch._C._aoti.AOTIModelPackageLoader(str(folder), entry.name, False, 1, -1)
        names = sorted(loader.get_constant_fqns())
    known = {spec.name for spec in entry.spec().constants} | set(literals)
    stray = [name for name in names if name not in known]
    if stray:
        raise BuildFailed(f"{entry.name}: the binary wants {stray[0]}, which is neither a parameter nor a buffer")
    return tuple(names)


def _pack(files: Mapping[str, Sequence[str]], out_path: Path, work: Path) -> None:
    """Writes torch's own archive layout, but deflated and with fixed times: equal content, equal bytes."""
    from torch._inductor.package import package_aoti

    plain = work / "package.pt2"
    package_aoti(str(plain), {name: list(paths) for name, paths in files.items()})
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(out_path, "w", zipfile.ZIP_DEFLATED) as target:
        for member in sorted(source.infolist(), key=lambda item: item.filename):
            info = zipfile.ZipInfo(member.filename, (1980, 1, 1, 0, 0, 0))
            info.external_attr = 0o600 << 16
            target.writestr(info, source.read(member), zipfile.ZIP_DEFLATED)


def count_ops(graph_module: fx.GraphModule) -> dict[str, int]:
    """Operator name -> times used, over the graph and all its subgraphs (loop bodies, branches)."""
    counts: Counter[str] = Counter()
    for module in graph_module.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                if node.op == "call_function":
                    counts[getattr(node.target, "__name__", str(node.target))] += 1
    return dict(sorted(counts.items()))


def _short(error: BaseException) -> str:
    """The telling part of a compiler's error: its first lines, without its advice and its stack."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line] or lines[:4]
    return f"{type(error).__name__}: " + " / ".join(line.strip() for line in telling[:4])[:1500]
