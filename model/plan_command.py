"""`python -m model plan`: the memory plan of a model folder, or of a published model that is not here."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from .config import ModelConfig, RolloutConfig, from_mapping, read_config
from .published.presets import PRESETS, WAN_1_3B, by_name

PLAIN = "wan-1.3b"  # with Self-Forcing's sampling


def add_parser(subparsers: argparse._SubParsersAction, embedded: Path) -> None:
    """Add `plan`; a parsed namespace has `run`, to be called with it, which returns the exit status."""
    parser = subparsers.add_parser("plan", help="what a model needs in memory; reads its configuration only")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", default=embedded, metavar="MODEL",
                       help="a folder, a Hub id or a preset, as of generate; only settings are fetched")  # fmt: skip
    model.add_argument("--preset", choices=[PLAIN, *(preset.name for preset in PRESETS)],
                       help="a published model's configuration, as it is known here; nothing is fetched")  # fmt: skip
    parser.add_argument("--size", metavar="HxW", help="height x width in pixels (default: all that the model offers)")
    parser.add_argument("--blocks-per-call", type=int, default=1, metavar="N", help="room for blocks in one call")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--json", action="store_true", help="print it as JSON: bytes, by size")
    parser.set_defaults(run=_run)


def configured(model: Path | str, preset: str | None) -> ModelConfig:
    """Of a preset, else of what --model may say. Raises ConfigError or ModelError."""
    if preset is not None:
        plain, known = read_config(WAN_1_3B), by_name(preset)
        rollout = plain.rollout if known is None else from_mapping(RolloutConfig, known.onegraph(), preset)
        return replace(plain, rollout=rollout)
    folder = Path(model)
    if not (folder / "onegraph.json").is_file():  # else it need not have all parts
        from .published.locate import locate

        folder = locate(model, weights=False).folder
    return read_config(folder)


def _run(args: argparse.Namespace) -> int:
    from .device import DTYPES
    from .pipeline import MAX_BLOCKS, check_size
    from .plan import plan
    from .service.forms import read_size, size_text, whole_number

    config = configured(args.model, args.preset)
    sizes = [read_size(args.size)] if args.size else config.rollout.sizes
    room = whole_number("number of blocks per call", args.blocks_per_call, 1, MAX_BLOCKS)
    for size in sizes:
        check_size(config, *size)
    plans = {size_text(*size): plan(config, *size, room, DTYPES[args.dtype]) for size in sizes}
    if args.json:
        print(json.dumps({size: made.as_dict() for size, made in plans.items()}))
        return 0
    rollout = config.rollout
    window, sink = (blocks * rollout.block_frames for blocks in (rollout.window_blocks, rollout.sink_blocks))
    unit, name = (1e9, "GB") if any(made.peak >= 1e9 for made in plans.values()) else (1e6, "MB")
    lines = [
        f"{rollout.title}, {args.dtype}: window of {window} latent frames, sink of {sink}, blocks per call: {room}\n",
        f"| {name} | {' | '.join(plans)} |",
        f"|---|{'---|' * len(plans)}",
    ]
    for cells in zip(*(made.rows() for made in plans.values()), strict=True):
        lines.append(f"| {cells[0][0]} | {' | '.join(f'{size / unit:.2f}' for _, size in cells)} |")
    print("\n".join(lines), file=sys.stderr)
    return 0
