"""What serves requests at one moment, and how it came to that: as facts, and in words for visitors.

Knows neither how a binary is found nor who shows this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .recording import MODE_NAMES

_FOLDERS = re.compile(r"(?<![\w./])/(?=[^/\s])(?:[^\s/'\"`,;:()]+/)*")  # of an absolute path; not in a URL, a/b or ../a


@dataclass(frozen=True)
class Status:
    """What serves requests at this moment, and why."""

    mode: str  # "aot", "jit" or "eager"
    source: str | None  # where the binary came from
    key: str | None
    size: int | None  # bytes of the binary
    load_seconds: float | None
    reason: str | None  # what was tried before, and why it does not serve
    building: str | None  # what is being done right now to get one, None when nothing is
    failure: str | None  # why the last build gave no binary
    published: str | None  # what became of offering a build to the Hub repository
    build: Mapping[str, Any]  # of the binary: when, by whom, its sha256, the key's fields

    @property
    def label(self) -> str:
        return MODE_NAMES.get(self.mode, self.mode) + (f", {_verb(self.building)} …" if self.building else "")

    def facts(self) -> dict[str, str]:
        """What runs, in words for visitors: name -> value, only what applies; nothing of where files lie here."""
        build = self.building or (self.failure and f"failed: {self.failure}")
        return _said({
            "Runs": "AoT binary of the whole graph" if self.mode == "aot" else f"PyTorch, {MODE_NAMES[self.mode]}",
            "Why": None if self.mode == "aot" else self.reason,
            "Build": build,
            "Binary from": self.source,
            "Key": self.key,
            "Size": self.size and f"{self.size / 1e6:.2f} MB",
            "Loaded in": self.load_seconds and f"{1000 * self.load_seconds:.0f} ms",
        })  # fmt: skip

    def build_facts(self) -> dict[str, str]:
        """How it came to the binary that runs, or to none, in the same form."""
        build = self.build
        return _said({
            "Source": self.source,
            "Key": self.key,
            "Size": self.size and f"{self.size} bytes",
            "Tried before": self.reason,
            "Last build": self.failure and f"failed: {self.failure}",
            "Built": build and f"{build['built_at']} in {build['build_seconds']:.0f} s with {build['compiler']}",
            "By": build and build["publisher"],
            "Licence": build and build["licence"],
            "Checked": build and f"sha256 {build['sha256']}, archive members, {_trial(build)}",
            "Hub": self.published,
        })  # fmt: skip

    def key_fields(self) -> dict[str, str]:
        """The fields of the binary's key, in words: dotted name -> value; entry points by their sizes."""
        rows: dict[str, str] = {}
        for name, value in self.build.get("fields", {}).items():
            if name == "entry_points":
                for entry in value:
                    counts = f"{len(entry['inputs'])} inputs, {len(entry['constants'])} weights and tables"
                    rows[f"entry point {entry['name']}"] = counts
            elif isinstance(value, Mapping):
                rows |= {f"{name}.{inner}": _short(item) for inner, item in value.items()}
            else:
                rows[name] = _short(value)
        return rows

    def as_dict(self) -> dict[str, Any]:
        """For programs, JSON-able; nothing of where files lie here."""
        words = {name: value and without_folders(value) for name, value in (
            ("reason", self.reason), ("building", self.building), ("failure", self.failure),
            ("published", self.published), ("source", self.source),
        )}  # fmt: skip
        return {**asdict(self), **words}


def _said(rows: Mapping[str, Any]) -> dict[str, str]:
    return {name: without_folders(str(value)) for name, value in rows.items() if value}


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]} …"


def _trial(build: Mapping[str, Any]) -> str:
    return "trial run" if build.get("reference") else "no trial run"


def _verb(doing: str) -> str:
    """Two words for a badge."""
    return next(
        (verb for verb in ("asking", "downloading", "trying", "publishing") if doing.startswith(verb)), "compiling"
    )


def without_folders(text: str) -> str:
    """The text with "/some/folder/name" as "…/name": which file it was, but not where it lies on this machine."""
    return _FOLDERS.sub("…/", text)
