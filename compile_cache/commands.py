"""The commands for the local store: list, show, verify, explain, prune. Each takes the store and the arguments."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from compile_cache import explain
from compile_cache.errors import CompileCacheError, PackageRefused
from compile_cache.key import FIELD_NAMES, SCHEMA, environment
from compile_cache.manifest import Manifest
from compile_cache.options import effective_options
from compile_cache.store import LocalStore

Command = Callable[[LocalStore, argparse.Namespace], int]


class WrongUsage(Exception):
    """Arguments that do not go together; the text says which."""


def add_parsers(commands: Any) -> None:
    """Adds the commands to an argparse subparsers object; each sets `run` to a Command."""

    def add(name: str, run: Command, words: str, as_json: bool = False) -> argparse.ArgumentParser:
        parser = commands.add_parser(name, help=words)
        parser.set_defaults(run=run)
        if as_json:
            parser.add_argument("--json", action="store_true", help="as JSON")
        return parser

    add("list", _list, "what is stored", as_json=True)
    show = add("show", _show, "one entry's manifest", as_json=True)
    show.add_argument("key", help="a key, or an unambiguous beginning of one")
    verify = add("verify", _verify, "check entries; broken ones go to quarantine")
    verify.add_argument("key", nargs="?", help="a key or its beginning (default: all)")
    why = add("explain", _explain, "why stored entries do not fit here, field by field", as_json=True)
    why.add_argument("--fields", type=Path, metavar="FILE",
                     help="a model's key fields as JSON, all or some; the environment's and the options' are "
                     "those of this machine unless given")  # fmt: skip
    prune = add("prune", _prune, "remove the entries for which every given condition holds")
    prune.add_argument("--older-than", type=float, metavar="DAYS", help="stored more than DAYS days ago")
    prune.add_argument("--torch-version", metavar="X", help="built with this torch version")
    prune.add_argument("--unusable", action="store_true",
                       help="of no use here: unreadable, or for another torch, device, processor, ...")  # fmt: skip
    prune.add_argument("--all", action="store_true", help="everything, with the quarantine")


def one_key(store: LocalStore, beginning: str) -> str:
    """The stored key that begins so. Raises CompileCacheError when there is none or more than one."""
    found = [key for key in store.entries() if key.startswith(beginning)]
    if len(found) != 1:
        number = "no entry begins" if not found else f"{len(found)} entries begin"
        raise CompileCacheError(f"{number} with {beginning!r}")
    return found[0]


def _list(store: LocalStore, chosen: argparse.Namespace) -> int:
    rows = [_row(store, key) for key in store.entries()]
    quarantined = store.quarantined()
    if chosen.json:
        kept = [{"key": key, "reason": reason} for key, reason in quarantined]
        _print_json({"store": str(store.root), "entries": rows, "quarantined": kept})
    else:
        print(f"{store.root}: {len(rows)} {'entry' if len(rows) == 1 else 'entries'}")
        for row in rows:
            print(f"{row['key'][:16]}  {row['stored']}  {_summary(row)}")
        for key, reason in quarantined:
            print(f"{key[:16]}  quarantined: {reason}")
    return 1 if any("error" in row for row in rows) else 0


def _row(store: LocalStore, key: str) -> dict[str, Any]:
    row = {"key": key, "stored": datetime.fromtimestamp(store.age(key)).strftime("%Y-%m-%d %H:%M")}
    try:
        manifest = store.manifest(key)
    except PackageRefused as error:
        return {**row, "error": str(error)}
    place = manifest.fields["environment"]
    return {
        **row,
        "bytes": manifest.package.size,
        "build_seconds": round(manifest.seconds, 1),
        "torch": place.get("torch"),
        "runs_on": place.get("gpu") or place.get("cpu", {}).get("vector", "?"),
        "entry_points": sorted(manifest.entry_points),
    }


def _summary(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"BROKEN: {row['error']}"
    size, seconds = f"{row['bytes'] / 2**20:.2f} MB", f"{row['build_seconds']:.0f} s"
    return f"{size}  {seconds}  torch {row['torch']}  {row['runs_on']}  [{', '.join(row['entry_points'])}]"


def _show(store: LocalStore, chosen: argparse.Namespace) -> int:
    manifest = store.manifest(one_key(store, chosen.key))
    if chosen.json:
        _print_json(json.loads(manifest.to_json()))
    else:
        print("\n".join(_lines(manifest)))
    return 0


def _lines(manifest: Manifest) -> list[str]:
    package = manifest.package
    head = {
        "key": manifest.key,
        "built": f"{manifest.built_at} in {manifest.seconds:.0f} s with {manifest.compiler}",
        "publisher": manifest.publisher or "not named",
        "licence": manifest.licence or "not named",
        "package": f"{package.size} bytes, sha256 {package.sha256}",
        "pin": manifest.content,
        "reference": manifest.reference or "none: it was stored without a trial run",
        "sources": manifest.fields["sources"],
    }
    for part in ("environment", "options", "config", "kernels"):
        head |= {f"{part}.{name}": value for name, value in sorted(manifest.fields[part].items())}
    for name, spec in sorted(manifest.entry_points.items()):
        head[name] = f"{len(spec.inputs)} inputs, {len(manifest.bound[name])} of {len(spec.constants)} weights used"
    return [f"{name:<24} {value}" for name, value in head.items()]


def _verify(store: LocalStore, chosen: argparse.Namespace) -> int:
    keys = store.entries() if chosen.key is None else [one_key(store, chosen.key)]
    broken = 0
    for key in keys:
        try:
            store.find(key)
            print(f"{key}  ok")
        except PackageRefused as error:
            broken += 1
            print(f"{key}  REFUSED, moved to quarantine: {error}")
    print(f"{len(keys)} checked, {broken} refused")
    return 1 if broken else 0


def _explain(store: LocalStore, chosen: argparse.Namespace) -> int:
    fields = _fields_here() | ({} if chosen.fields is None else _read_fields(chosen.fields))
    if chosen.json:
        _print_json(explain.report(store, fields))
        return 0
    print("\n".join(explain.report_words(store, fields)))
    if chosen.fields is None:
        print("\n".join(_among_themselves(store)))
    return 0


def _fields_here() -> dict[str, Any]:
    """What is known without a model."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    options = effective_options(device)
    return {"schema": SCHEMA, "environment": environment(device, options), "options": options}


def _read_fields(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CompileCacheError(f"{path} cannot be read as JSON: {error}") from None
    unknown = sorted(set(fields) - set(FIELD_NAMES)) if isinstance(fields, dict) else ["no object"]
    if unknown:
        raise CompileCacheError(f"{path}: {unknown[0]!r} is none of the key's fields, which are {FIELD_NAMES}")
    for name in ("environment", "options", "config", "kernels"):
        if not isinstance(fields.get(name, {}), dict):
            raise CompileCacheError(f"{path}: {name} is not an object")
    return fields


def _among_themselves(store: LocalStore) -> list[str]:
    """Without a model's fields, the rest can only be compared between entries: each with the newest."""
    sound = {}
    for key in store.entries():
        with suppress(PackageRefused):
            sound[key] = {name: store.manifest(key).fields[name] for name in FIELD_NAMES if name not in _fields_here()}
    *others, newest = sound or [None]
    lines = [f"between entries, where here is the newest, {newest[:16]}:"] if others else []
    for key in others:
        lines += explain.words(explain.Explained(key, tuple(explain.differences(sound[newest], sound[key]))))
    return lines


def _prune(store: LocalStore, chosen: argparse.Namespace) -> int:
    if not (chosen.all or chosen.torch_version or chosen.unusable or chosen.older_than is not None):
        raise WrongUsage("prune needs --older-than, --torch-version, --unusable or --all")
    if chosen.older_than is not None and not chosen.older_than >= 0:
        raise WrongUsage("--older-than takes a number of days, 0 or more")
    removed = 0
    for key in store.entries():
        why = "everything goes" if chosen.all else _reason(store, key, chosen)
        if why is not None:
            store.remove(key)
            removed += 1
            print(f"removed {key}: {why}")
    if chosen.all:
        store.empty_quarantine()
    print(f"{removed} removed, {len(store.entries())} kept")
    return 0


def _reason(store: LocalStore, key: str, chosen: argparse.Namespace) -> str | None:
    """Why every condition given holds; None when one does not."""
    reasons = []
    if chosen.older_than is not None:
        days = (time.time() - store.age(key)) / 86400
        if days < chosen.older_than:
            return None
        reasons.append(f"stored {days:.0f} days ago")
    try:
        fields = store.manifest(key).fields
    except PackageRefused as error:
        return str(error) if chosen.unusable and not chosen.torch_version else None
    if chosen.torch_version:
        if fields["environment"].get("torch") != chosen.torch_version:
            return None
        reasons.append(f"torch {chosen.torch_version}")
    if chosen.unusable:
        unlike = explain.misfits(fields)
        if not unlike:
            return None
        reasons.append(str(unlike[0]))
    return ", ".join(reasons)


def _print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, sort_keys=True)
    print()
