"""python -m compile_cache list | show KEY | verify [KEY] | explain | prune | push KEY | pull KEY ...

Looks after stores of compiled binaries. Exit codes: 0 done, 1 something is wrong or was not found, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from compile_cache import commands, hub_commands
from compile_cache.errors import CompileCacheError
from compile_cache.store import LocalStore

PARTS = (commands, hub_commands)  # modules with add_parsers(subparsers), in this order


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit code as above."""
    parser = argparse.ArgumentParser(prog="python -m compile_cache", description="Looks after compiled binaries.")
    parser.add_argument("--store", type=Path, help="folder of the store (default: $ONEGRAPH_CACHE or the cache folder)")
    subparsers = parser.add_subparsers(dest="command", required=True)
    for part in PARTS:
        part.add_parsers(subparsers)
    chosen = parser.parse_args(arguments)
    try:
        store = LocalStore(chosen.store)
        if store.note:
            print(store.note, file=sys.stderr)
        return chosen.run(store, chosen)
    except commands.WrongUsage as error:
        parser.error(str(error))
    except CompileCacheError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
