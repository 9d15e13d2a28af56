"""From entry points to a stored entry: build, prove in a child process, compare with eager, store.

The one place where key, build, proof and store meet. Nothing enters the store that has not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compile_cache import members, scratch
from compile_cache.build import BuildFigures, Progress, build_package
from compile_cache.eager import TOLERANCE, compare
from compile_cache.entry import EntryPoint
from compile_cache.errors import BuildFailed, PackageRefused
from compile_cache.key import key_of
from compile_cache.manifest import PACKAGE, SCHEMA, FileRecord, Manifest
from compile_cache.proof import Call, prove
from compile_cache.store import Entry, LocalStore


def produce(
    entry_points: Sequence[EntryPoint],
    store: LocalStore,
    fields: Mapping[str, Any],
    calls: Sequence[Call],
    *,
    options: Mapping[str, Any] | None = None,
    tolerance: float = TOLERANCE,
    publisher: str = "",
    licence: str = "",
    progress: Progress = lambda text: None,
    timeout: float = 900.0,
) -> Entry:
    """Builds the binary for `fields` and stores it; returns the stored entry, or the one already there.

    fields: from `key.key_fields` with the same entry points' specs and the same options.
    calls: what the binary is proven with; whoever checks it later must derive the same ones from `fields`.
    tolerance: the greatest relative L2 distance from the modules run eagerly, of any output or changed input.
    timeout: of the trial run, in seconds.
    Raises CompilerMissing, BuildFailed, SmokeFailed, StoreError.
    """
    key = key_of(fields)
    specs = sorted((entry.spec() for entry in entry_points), key=lambda spec: spec.name)
    if [spec.as_json() for spec in specs] != list(fields["entry_points"]):
        raise BuildFailed("the entry points are not those of the key's fields")
    with store.building(key):
        found = _already(store, key)
        if found is not None:
            progress("it is in the store")
            return found
        store.check_writable()  # before minutes of compiling, not after
        with scratch.folder() as work:
            package = work / PACKAGE
            figures = build_package(entry_points, package, options, progress)
            manifest = _manifest(key, fields, package, figures, publisher, licence)
            progress("trying it out in a process of its own")
            proof = prove(package, manifest, calls, timeout=timeout)
            progress("comparing it with eager")
            apart = compare(entry_points, manifest, calls, proof, tolerance)
            progress(f"storing (relative distance from eager {apart:.1e})")
            return store.put(replace(manifest, reference=proof.digest), package)


def _already(store: LocalStore, key: str) -> Entry | None:
    try:
        return store.find(key)
    except PackageRefused:
        return None  # in quarantine now


def _manifest(
    key: str, fields: Mapping[str, Any], package: Path, figures: BuildFigures, publisher: str, licence: str
) -> Manifest:
    """Not proven yet: without the reference digest."""
    with package.open("rb") as file:
        record = FileRecord(*members.hash_file(file))
    return Manifest(
        schema=SCHEMA,
        key=key,
        fields=fields,
        files={PACKAGE: record},
        bound=figures.bound,
        literals=figures.literals,
        figures=figures.entries,
        reference=None,
        built_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        compiler=figures.compiler,
        publisher=publisher,
        licence=licence,
    )
