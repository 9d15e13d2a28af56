"""Command line: python -m model generate | compile | explain | convert | plan | judge | train.

Results for programs go to standard output as JSON (--json), words for people to standard error. Exit status: 0,
1 where something failed, 2 where the request was wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from compile_cache.errors import CompileCacheError, shown

from . import plan_command
from .config import ConfigError
from .limit_options import add_limit_options, limits_of
from .progress import tenths
from .published.presets import PRESETS, WAN_1_3B, by_name
from .training import cli

EMBEDDED = Path(__file__).parent / "tiny"
FAILED, WRONG, INTERRUPTED = 1, 2, 130
MODES = ("auto", "aot", "eager", "jit")


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    # torch takes a second to import: only after the arguments are known to be right.
    from .faults import fault, lacks_memory
    from .pipeline import GenerationError, RequestError

    try:
        return args.run(args)
    except RequestError as error:
        return _fail(args, error, WRONG)
    except (ConfigError, CompileCacheError, GenerationError, OSError) as error:
        return _fail(args, error, FAILED)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if not lacks_memory(error):
            raise
        return _fail(args, CompileCacheError(f"There is not enough memory: {fault(error)}"), FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m model", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_generate(commands)
    _add_compile(commands)
    _add_explain(commands)
    _add_convert(commands)
    cli.add_parsers(commands)
    plan_command.add_parser(commands, EMBEDDED)
    return parser


def _add_generate(commands: Any) -> None:
    parser = commands.add_parser("generate", help="make a video from a prompt")
    parser.add_argument("prompt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=7, help="length: 12 frames each, the first 9 (default 7)")
    parser.add_argument("--size", metavar="HxW", help="height x width in pixels (default: the model's first size)")
    parser.add_argument("--steps", type=int, help="denoising steps per block (default: the model's)")
    parser.add_argument("--mode", choices=MODES, default="auto",
                        help="auto: the compiled binary where there is one, else eager")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FILE", help="write an mp4")
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    parser.add_argument("--blocks-per-call", type=int, default=1, metavar="N",
                        help="blocks made in one call of the graph; does not change the frames")  # fmt: skip
    add_limit_options(parser)
    _add_model(parser)
    parser.set_defaults(run=_generate)


def _add_compile(commands: Any) -> None:
    parser = commands.add_parser("compile", help="compile the graph and store the binary; takes minutes")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    _add_model(parser)
    parser.set_defaults(run=_compile)


def _add_explain(commands: Any) -> None:
    parser = commands.add_parser("explain", help="why it is compiling: the model's key, and how stored binaries differ")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    _add_model(parser)
    parser.set_defaults(run=_explain)


def _add_convert(commands: Any) -> None:
    parser = commands.add_parser("convert", help="a published .pt checkpoint to a folder in diffusers layout")
    parser.add_argument("source", type=Path, metavar="IN", help="a checkpoint of a causal Wan, or of the Wan 2.1 VAE")
    parser.add_argument("out", type=Path, metavar="OUT", help="writes OUT/transformer, or OUT/vae")
    parser.add_argument("--which", choices=("ema", "raw"),
                        help="moving average of the weights or last state (default: the average if there)")  # fmt: skip
    parser.add_argument("--lora", type=Path, metavar="FILE", help="an adapter to merge, as LongLive's lora.pt")
    parser.add_argument("--lora-alpha", type=float, metavar="A", help="its alpha (default: its rank, as LongLive's)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--preset", choices=[preset.name for preset in PRESETS if preset.checkpoints], metavar="NAME",
                        help="whose it is: its sampling and licence go to OUT/onegraph.json")  # fmt: skip
    parser.add_argument("--like", type=Path, metavar="DIR",
                        help="model folder with the configuration it must have (default: Wan 2.1 1.3B)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    parser.set_defaults(run=_convert)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=os.environ.get("MODEL_ID", "").strip() or EMBEDDED, metavar="MODEL",
                        help="a folder in diffusers layout, a Hub id OWNER/NAME[@COMMIT] or a preset: "
                        + ", ".join(preset.name for preset in PRESETS if preset.transformer)
                        + " (default: $MODEL_ID, else the embedded model)")  # fmt: skip
    parser.add_argument("--precision", choices=("auto", "bfloat16", "float32", "int8", "fp8"), default="auto",
                        help="auto: what ONEGRAPH_PRECISION says, else bfloat16 where the hardware multiplies it; int8 "
                        "and fp8 (GPUs only): the transformer's linear layers multiply in 8 bits")  # fmt: skip
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                        help="auto: what ONEGRAPH_DEVICE says, else a GPU if there is one")  # fmt: skip
    parser.add_argument("--threads", type=_threads, metavar="N", help="CPU threads of torch (default: its own choice)")


def _threads(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError("a whole number from 1 to 1024")
    return int(text)


def _generate(args: argparse.Namespace) -> int:
    started = time.perf_counter()
    from .binary import open_parts
    from .pipeline import Pipeline
    from .service.forms import settings_of
    from .service.sources import hub_source, local_source
    from .service.video import Mp4Writer

    _set_threads(args)
    if args.out and (not args.out.parent.is_dir() or args.out.is_dir()):
        raise NotADirectoryError(f"--out {args.out}: name a file in a folder that is there")
    folder, parts = _load(args)
    hub = hub_source(parts.config, parts.dtype, progress=_say)
    sources = [local_source(), *([hub] if hub else [])]
    pipeline = Pipeline(folder, open_parts(parts, args.mode, sources))
    request = pipeline.check(_request(args, pipeline.config.rollout))
    if hint := pipeline.hint(request):
        _say(hint)
    loaded = time.perf_counter()
    sha, frames, first, report = hashlib.sha256(), 0, None, {}
    with ExitStack() as stack:
        writer = args.out and stack.enter_context(
            Mp4Writer(args.out, pipeline.config.rollout.fps, settings_of(request))
        )
        for block in pipeline.stream(request, args.blocks_per_call):
            first = first or time.perf_counter()
            sha.update(block.frames.tobytes())
            frames, report = frames + len(block.frames), block.report.as_dict()
            if writer:
                writer.add(block.frames)
        generated = time.perf_counter()
    origin = pipeline.runner.origin
    done = {
        "seed": request.seed,
        "frames": frames,
        "digest": sha.hexdigest(),
        "seconds": {
            "load": round(loaded - started, 3),
            "first_frames": round((first or generated) - started, 3),
            "generate": round(generated - loaded, 3),
            "finish_file": round(time.perf_counter() - generated, 3),
        },
        **report,
        **({"hint": hint} if hint else {}),
        "mode": pipeline.runner.mode,
        "precision": parts.precision.name,
        "binary": {"key": origin.key, "source": origin.source, "reason": origin.reason},
        "out": str(args.out) if args.out else None,
    }
    _tell(args, done, f"{frames} frames, {pipeline.runner.mode}, {done['seconds']['generate']} s")
    return 0


def _request(args: argparse.Namespace, rollout: Any) -> Any:
    from .pipeline import Request
    from .service.forms import read_size

    height, width = read_size(args.size) if args.size else rollout.sizes[0]
    steps = rollout.steps if args.steps is None else args.steps
    return Request(args.prompt, args.seed, args.blocks, height, width, steps, limits_of(args, rollout))


def _compile(args: argparse.Namespace) -> int:
    started = time.perf_counter()
    from .binary import build

    _set_threads(args)
    _, parts = _load(args)
    entry = build(parts, progress=_say)
    size, seconds = entry.manifest.package.size, time.perf_counter() - started
    done = {"key": entry.key, "seconds": round(seconds, 1), "bytes": size, "package": str(entry.package)}
    _tell(args, done, f"{entry.key[:12]}: {size / 1e6:.2f} MB after {seconds:.0f} s")
    return 0


def _explain(args: argparse.Namespace) -> int:
    from compile_cache import explain
    from compile_cache.store import LocalStore

    from .binary import binary_fields

    store, fields = LocalStore(), binary_fields(_load(args)[1])
    _tell(args, explain.report(store, fields), "\n".join(explain.report_words(store, fields)))
    return 0


def _convert(args: argparse.Namespace) -> int:
    from .device import DTYPES
    from .published import convert

    made = convert.convert(args.source, args.out, which=args.which, lora=args.lora, lora_alpha=args.lora_alpha,
                           model=args.like or WAN_1_3B, dtype=DTYPES[args.dtype],
                           preset=args.preset and by_name(args.preset), progress=tenths("written", _say))  # fmt: skip
    done = {"folder": str(made.folder), "part": made.part, "section": made.section or None, "tensors": made.tensors,
            "bytes": made.bytes, "adapted": made.adapted}  # fmt: skip
    merged = f", adapter merged into {made.adapted} layers" if made.adapted else ""
    section = f"{made.section} of " if made.section else ""
    _tell(args, done, f"{made.folder}: {made.tensors} tensors from {section}{args.source}{merged}")
    return 0


def _load(args: argparse.Namespace) -> tuple[Path, Any]:
    """The folder of the model that was named, downloaded where it has to be, and its parts."""
    from .faults import KNOWN, fault
    from .parts import load_parts
    from .published.locate import locate

    try:
        folder = locate(args.model, progress=tenths("downloaded", _say)).folder
        return folder, load_parts(folder, args.precision, args.device, progress=tenths("loaded", _say))
    except KNOWN:
        raise
    except Exception as error:  # a model of others can raise anything
        words = fault(error) or f"{type(error).__name__}: {error}"
        raise CompileCacheError(f"The model {args.model} cannot be used: {words}") from None


def _set_threads(args: argparse.Namespace) -> None:
    import torch

    if args.threads:
        torch.set_num_threads(args.threads)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _tell(args: argparse.Namespace, values: dict[str, Any], words: str) -> None:
    print(json.dumps(values)) if args.json else print(words, file=sys.stderr)


def _fail(args: argparse.Namespace, error: Exception, status: int) -> int:
    said = shown(str(error))  # it may quote what a file holds
    print(said, file=sys.stderr)
    details = list(getattr(error, "details", ()))
    if details:
        print(*details, sep="\n", file=sys.stderr)
    if getattr(args, "json", False):
        print(json.dumps({"error": said} | ({"details": details} if details else {})))
    return status


if __name__ == "__main__":
    sys.exit(main())
