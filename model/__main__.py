"""Command line: python -m model generate | compile | explain | judge | train.

Results for programs go to standard output as JSON (--json), words for people to standard error. Exit status: 0,
1 where something failed, 2 where the request was wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from compile_cache.errors import CompileCacheError

from .config import ConfigError
from .training import cli

EMBEDDED = Path(__file__).parent / "tiny"
FAILED, WRONG, INTERRUPTED = 1, 2, 130
MODES = ("auto", "aot", "eager", "jit")


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    # torch takes a second to import: only after the arguments are known to be right.
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m model", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_generate(commands)
    _add_compile(commands)
    _add_explain(commands)
    cli.add_parsers(commands)
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
    for name, what in (
        ("resample-above", "start a block again whose last two predictions differ by more"),
        ("skip-below", "end a block's denoising when two predictions differ by this or less"),
        ("still-below", "end the video when a block's first and last latent frame differ by this or less"),
    ):
        parser.add_argument(f"--{name}", type=float, metavar="D", help=f"{what} (default: off)")
    parser.add_argument("--max-attempts", type=int, default=1, metavar="N", help="how often a block may start again")
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


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=EMBEDDED, metavar="DIR", help="model folder, diffusers layout")
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
    from .forms import settings_of
    from .parts import load_parts
    from .pipeline import Pipeline
    from .sources import hub_source, local_source
    from .video import Mp4Writer

    _set_threads(args)
    if args.out and (not args.out.parent.is_dir() or args.out.is_dir()):
        raise NotADirectoryError(f"--out {args.out}: name a file in a folder that is there")
    parts = load_parts(args.model, args.precision, args.device)
    hub = hub_source(parts.config, parts.dtype, progress=lambda text: print(text, file=sys.stderr))
    sources = [local_source(), *([hub] if hub else [])]
    pipeline = Pipeline(args.model, open_parts(parts, args.mode, sources))
    request = pipeline.check(_request(args, pipeline.config.rollout))
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
        "mode": pipeline.runner.mode,
        "precision": parts.precision.name,
        "binary": {"key": origin.key, "source": origin.source, "reason": origin.reason},
        "out": str(args.out) if args.out else None,
    }
    _tell(args, done, f"{frames} frames, {pipeline.runner.mode}, {done['seconds']['generate']} s")
    return 0


def _request(args: argparse.Namespace, rollout: Any) -> Any:
    from .forms import read_size
    from .pipeline import Limits, Request

    height, width = read_size(args.size) if args.size else rollout.sizes[0]
    limits = Limits(args.max_attempts, args.resample_above, args.skip_below, args.still_below)
    steps = rollout.steps if args.steps is None else args.steps
    return Request(args.prompt, args.seed, args.blocks, height, width, steps, limits)


def _compile(args: argparse.Namespace) -> int:
    started = time.perf_counter()
    from .binary import build
    from .parts import load_parts

    _set_threads(args)
    parts = load_parts(args.model, args.precision, args.device)
    entry = build(parts, progress=lambda text: print(text, file=sys.stderr, flush=True))
    size, seconds = entry.manifest.package.size, time.perf_counter() - started
    done = {"key": entry.key, "seconds": round(seconds, 1), "bytes": size, "package": str(entry.package)}
    _tell(args, done, f"{entry.key[:12]}: {size / 1e6:.2f} MB after {seconds:.0f} s")
    return 0


def _explain(args: argparse.Namespace) -> int:
    from compile_cache import explain
    from compile_cache.store import LocalStore

    from .binary import binary_fields
    from .parts import load_parts

    store, fields = LocalStore(), binary_fields(load_parts(args.model, args.precision, args.device))
    _tell(args, explain.report(store, fields), "\n".join(explain.report_words(store, fields)))
    return 0


def _set_threads(args: argparse.Namespace) -> None:
    import torch

    if args.threads:
        torch.set_num_threads(args.threads)


def _tell(args: argparse.Namespace, values: dict[str, Any], words: str) -> None:
    print(json.dumps(values)) if args.json else print(words, file=sys.stderr)


def _fail(args: argparse.Namespace, error: Exception, status: int) -> int:
    print(error, file=sys.stderr)
    if getattr(args, "json", False):
        print(json.dumps({"error": str(error)}))
    return status


if __name__ == "__main__":
    sys.exit(main())
