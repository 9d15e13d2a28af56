"""python -m compile_cache list | show KEY | verify [KEY] | prune ...

Looks after the local store. Exit codes: 0 done, 1 something is wrong or was not found, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from compile_cache.errors import CompileCacheError, PackageRefused
from compile_cache.manifest import Manifest
from compile_cache.store import LocalStore


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit code as above."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    try:
        store = LocalStore(chosen.store)
        if store.note:
            print(store.note, file=sys.stderr)
        return _COMMANDS[chosen.command](store, chosen, parser)
    except CompileCacheError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m compile_cache", description="Looks after compiled binaries.")
    parser.add_argument("--store", type=Path, help="folder of the store (default: $ONEGRAPH_CACHE or the cache folder)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what is stored")
    show = commands.add_parser("show", help="the manifest of one entry, as JSON")
    show.add_argument("key", help="a key, or an unambiguous beginning of one")
    verify = commands.add_parser("verify", help="check entries; broken ones go to quarantine")
    verify.add_argument("key", nargs="?", help="a key or its beginning (default: all)")
    prune = commands.add_parser("prune", help="remove entries")
    prune.add_argument("--older-than", type=float, metavar="DAYS", help="built more than DAYS days ago")
    prune.add_argument("--torch-version", metavar="X", help="built with this torch version")
    prune.add_argument("--all", action="store_true", help="everything, with the quarantine")
    return parser


def _list(store: LocalStore, chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    keys = store.entries()
    print(f"{store.root}: {len(keys)} {'entry' if len(keys) == 1 else 'entries'}")
    code = 0
    for key in keys:
        written = datetime.fromtimestamp(store.age(key)).strftime("%Y-%m-%d %H:%M")
        try:
            print(f"{key[:16]}  {written}  {_summary(store.manifest(key))}")
        except PackageRefused as error:
            print(f"{key[:16]}  {written}  BROKEN: {error}")
            code = 1
    for key, reason in store.quarantined():
        print(f"{key[:16]}  quarantined: {reason}")
    return code


def _summary(manifest: Manifest) -> str:
    environment = manifest.fields["environment"]
    where = environment.get("gpu") or environment.get("cpu", {}).get("vector", "?")
    points = ", ".join(sorted(manifest.entry_points))
    size = f"{manifest.package.size / 2**20:.2f} MB"
    return f"{size}  {manifest.seconds:.0f} s  torch {environment.get('torch')}  {where}  [{points}]"


def _show(store: LocalStore, chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    key = _one(store, chosen.key)
    if key is None:
        return 1
    print(json.dumps(json.loads(store.manifest(key).to_json()), indent=2, sort_keys=True))
    return 0


def _verify(store: LocalStore, chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if chosen.key is None:
        keys = store.entries()
    else:
        one = _one(store, chosen.key)
        if one is None:
            return 1
        keys = [one]
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


def _prune(store: LocalStore, chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if not (chosen.all or chosen.torch_version or chosen.older_than is not None):
        parser.error("prune needs --older-than, --torch-version or --all")
    if chosen.older_than is not None and not chosen.older_than >= 0:
        parser.error("--older-than takes a number of days, 0 or more")
    removed = 0
    for key in store.entries():
        if chosen.all or _matches(store, key, chosen):
            store.remove(key)
            removed += 1
            print(f"removed {key}")
    if chosen.all:
        store.empty_quarantine()
    print(f"{removed} removed, {len(store.entries())} kept")
    return 0


def _matches(store: LocalStore, key: str, chosen: argparse.Namespace) -> bool:
    """Whether every condition given holds."""
    if chosen.older_than is not None and time.time() - store.age(key) < chosen.older_than * 86400:
        return False
    if chosen.torch_version:
        try:
            return store.manifest(key).fields["environment"].get("torch") == chosen.torch_version
        except PackageRefused:
            return False
    return True


def _one(store: LocalStore, beginning: str) -> str | None:
    found = [key for key in store.entries() if key.startswith(beginning)]
    if len(found) == 1:
        return found[0]
    number = "no entry begins" if not found else f"{len(found)} entries begin"
    print(f"error: {number} with {beginning!r}", file=sys.stderr)
    return None


_COMMANDS = {"list": _list, "show": _show, "verify": _verify, "prune": _prune}

if __name__ == "__main__":
    sys.exit(main())
