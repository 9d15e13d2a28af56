"""The commands for a repository on the Hub: push and pull; and list, show, verify and explain with --repo.

For reading, a repository is shown to the local commands as if it were a store.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

from compile_cache import commands, scratch
from compile_cache.deadline import Limits, megabytes
from compile_cache.errors import CompileCacheError, PackageRefused, SmokeFailed
from compile_cache.explain import misfits
from compile_cache.hub import FOLDERS, VARIABLE, HubStore
from compile_cache.manifest import Manifest
from compile_cache.store import LocalStore

PATIENT = Limits(ask=60.0, download=3600.0, stall=60.0)  # somebody has asked for it and can stop it


def add_parsers(subparsers: Any) -> None:
    """Adds the commands to an argparse subparsers object that has the local ones already."""
    push = subparsers.add_parser("push", help="publish a local entry in a Hub repository")
    push.add_argument("key", help="a key, or an unambiguous beginning of one")
    push.set_defaults(run=_push)
    pull = subparsers.add_parser("pull", help="download entries ahead; they are tried out when they are first used")
    pull.add_argument("key", nargs="?", help="a key of the repository, or an unambiguous beginning of one")
    pull.add_argument("--all", action="store_true", help="all that could run on this machine")
    pull.set_defaults(run=_pull)
    for parser in (push, pull):
        parser.add_argument("--repo", metavar="OWNER/NAME", help=f"the repository (default: ${VARIABLE})")
    for name in ("list", "show", "explain", "verify"):
        parser = subparsers.choices[name]
        parser.add_argument("--repo", metavar="OWNER/NAME", help="of this Hub repository instead of the local store")
        local = parser.get_default("run")
        parser.set_defaults(run=_either(local, _verify if name == "verify" else _shown(local)))
    prune = subparsers.choices["prune"]
    prune.set_defaults(run=_with_what_is_ours(prune.get_default("run")))


def _either(local: commands.Command, there: commands.Command) -> commands.Command:
    return lambda store, chosen: (local if chosen.repo is None else there)(store, chosen)


def _shown(command: Callable[[Any, argparse.Namespace], int]) -> commands.Command:
    return lambda store, chosen: command(RepoView(_repo(store, chosen)), chosen)


def _with_what_is_ours(prune: commands.Command) -> commands.Command:
    """prune --all also takes what was pulled, and the memory of what was refused."""

    def run(store: LocalStore, chosen: argparse.Namespace) -> int:
        if chosen.all:
            for folder in FOLDERS:
                shutil.rmtree(store.root / folder, ignore_errors=True)
        return prune(store, chosen)

    return run


class RepoView:
    """A repository at one commit, with the reading methods of a LocalStore."""

    def __init__(self, hub: HubStore) -> None:
        self._hub = hub
        self._commit, self._keys = hub.keys()
        self._manifests: dict[str, Manifest | None] = {}
        self.root = f"{hub.name} at {self._commit[:7]}"

    def entries(self) -> list[str]:
        return self._keys

    def manifest(self, key: str) -> Manifest:
        if key not in self._manifests:
            self._manifests[key] = self._hub.manifest(key, self._commit)
        manifest = self._manifests[key]
        if manifest is None:
            raise PackageRefused("the repository has a folder for this key but no manifest in it")
        return manifest

    def age(self, key: str) -> float:
        """When it was built: the repository does not say when it was stored."""
        try:
            return datetime.fromisoformat(self.manifest(key).built_at).timestamp()
        except (PackageRefused, ValueError):
            return 0.0

    def quarantined(self) -> list[tuple[str, str]]:
        """What this machine has refused of it."""
        refused = self._hub.refusals.all()
        return [(key, refusal.reason) for key, refusal in refused if refusal.content.repo == self._hub.repo]


def _repo(store: LocalStore, chosen: argparse.Namespace) -> HubStore:
    from huggingface_hub import get_token

    name = chosen.repo or os.environ.get(VARIABLE, "").strip()
    if not name:
        raise commands.WrongUsage(f"{chosen.command} needs --repo OWNER/NAME, or {VARIABLE} to be set")

    def tell(text: str) -> None:
        print(text, file=sys.stderr)

    patience = {"limits": PATIENT, "publish_seconds": PATIENT.download}
    return HubStore(name, store, _never, token=get_token(), progress=tell, **patience)


def _never(*_: object) -> None:
    raise SmokeFailed("there is nothing to try a binary out with here: that takes the model's reference calls")


def _push(store: LocalStore, chosen: argparse.Namespace) -> int:
    hub = _repo(store, chosen)
    if not hub.can_publish:
        raise CompileCacheError("there is no token: set HF_TOKEN or log in with `hf auth login`")
    key = commands.one_key(store, chosen.key)
    entry = store.find(key)
    if entry is None:
        raise CompileCacheError(f"{key} is gone")
    print(f"{key}  {hub.publish(entry).text}")
    return 0


def _pull(store: LocalStore, chosen: argparse.Namespace) -> int:
    if (chosen.key is None) != chosen.all:
        raise commands.WrongUsage("pull needs a KEY or --all")
    hub = _repo(store, chosen)
    view = RepoView(hub)
    keys = view.entries() if chosen.all else [commands.one_key(view, chosen.key)]
    code = 0
    for key in keys:
        try:
            print(f"{key}  {_pull_one(store, hub, view, key, anyhow=not chosen.all)}")
        except PackageRefused as error:
            print(f"{key}  REFUSED: {error}")
            code = 1
    print(f"{len(keys)} in {view.root}")
    return code


def _pull_one(store: LocalStore, hub: HubStore, view: RepoView, key: str, anyhow: bool) -> str:
    if key in store.entries():
        return "is in the local cache already"
    unlike = misfits(view.manifest(key).fields)
    if unlike and not anyhow:
        return f"left out, for another machine ({unlike[0]})"
    entry = hub.pull(key)
    if entry is None:
        return "is gone"
    size = megabytes(entry.manifest.package.size)
    return f"{size} from {entry.source}; it is tried out when it is first used with {VARIABLE}={hub.repo}"


def _verify(store: LocalStore, chosen: argparse.Namespace) -> int:
    """Downloads and checks, and keeps nothing."""
    hub = _repo(store, chosen)
    view = RepoView(hub)
    keys = view.entries() if chosen.key is None else [commands.one_key(view, chosen.key)]
    refused = 0
    for key in keys:
        hub.refusals.forget(key)
        try:
            with scratch.folder() as folder:
                print(f"{key}  {'ok' if hub.fetch(key, folder) else 'is gone'}")
        except PackageRefused as error:
            refused += 1
            print(f"{key}  REFUSED: {error}")
    print(f"{len(keys)} checked, {refused} refused")
    return 1 if refused else 0
