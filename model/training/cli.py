"""Hooks the training commands into `python -m model`: `train PART`, `judge` and `minute`.

A command's module, and torch with it, is imported when the command is run, so that the other commands start fast.
"""

from __future__ import annotations

import argparse
import importlib

PARTS = {
    "judge": ("judge", "the network that reads attributes from frames"),
    "vae": ("train_vae", "the VAE"),
    "latents": ("latents", "encode clips for the transformer"),
    "transformer": ("train_transformer", "the transformer with its text encoder"),
    "sample": ("sample", "a contact sheet of a run in progress"),
}


def add_parsers(subparsers: argparse._SubParsersAction) -> None:
    """Add the three commands; a parsed namespace has `run`, to be called with it, which returns the exit status."""
    train = subparsers.add_parser("train", help="train a part of the embedded model")
    parts = train.add_subparsers(required=True, metavar="PART")
    for name, (module, text) in PARTS.items():
        _add(parts, f"train {name}", module, text)
    _add(subparsers, "judge", "evaluate", "score the model on held-out prompts")
    _add(subparsers, "minute", "minute", "score videos of a minute: drift, sharpness, jumps")


def _add(subparsers: argparse._SubParsersAction, command: str, module: str, text: str) -> None:
    # With no prefix character in use, everything after the command is plain text, kept for the module's own parser.
    parser = subparsers.add_parser(command.split()[-1], help=text, add_help=False, prefix_chars="\0")
    parser.add_argument("rest", nargs="*")

    def run(args: argparse.Namespace) -> int:
        part = importlib.import_module(f"model.training.{module}")
        own = argparse.ArgumentParser(prog=f"python -m model {command}", description=part.__doc__.split("\n\n")[0])
        part.add_arguments(own)
        return part.run(own.parse_args(args.rest)) or 0

    parser.set_defaults(run=run)
