"""What MODEL_ID and --model may say: a folder, a preset's name or a Hub id, or several of them. Asks no Hub.

    ./folder    self-forcing    owner/name    owner/name@COMMIT    owner/name+other/name

A part is taken from the first source that has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from huggingface_hub.utils import HFValidationError, validate_repo_id

from compile_cache.errors import CompileCacheError
from compile_cache.provenance import COMMIT, REPO

from .presets import PRESETS, Preset, by_name, by_repo

FORMS = "a folder, a Hub id owner/name, perhaps with @ and a commit's 40 hex digits, or one of {}"


class ModelError(CompileCacheError):
    """A model cannot be found, fetched or used as named; the text says what was wrong and what is allowed."""


@dataclass(frozen=True)
class Source:
    """Where parts come from: a folder, or a repository at a commit (None: the tip of its main)."""

    folder: Path | None = None
    repo: str = ""
    commit: str | None = None

    @property
    def preset(self) -> Preset | None:
        return by_repo(self.repo)

    def __str__(self) -> str:
        if self.folder is not None:
            return str(self.folder)
        return f"{self.repo}@{self.commit}" if self.commit else self.repo


def parse(text: str) -> list[Source]:
    """The sources that a text names, in order; a folder of that very name comes first. Raises ModelError."""
    folder = _folder(text)
    return [folder] if folder is not None else [_one(part.strip()) for part in text.split("+")]


def of_preset(preset: Preset) -> Source:
    return Source(repo=preset.repo, commit=preset.commit)


def _folder(text: str) -> Source | None:
    path = Path(text).expanduser()
    return Source(folder=path.absolute()) if text.strip() and path.is_dir() else None


def _one(text: str) -> Source:
    folder = _folder(text)
    if folder is not None:
        return folder
    preset = by_name(text)
    if preset is not None:
        return of_preset(preset)
    repo, at, commit = text.partition("@")
    if at and not COMMIT.fullmatch(commit):
        raise ModelError(f"{text!r} names no commit: after the @ come its 40 hex digits")
    try:
        validate_repo_id(repo)
        sound = REPO.fullmatch(repo) is not None and not repo.startswith(".")
    except HFValidationError:
        sound = False
    if not sound:
        names = ", ".join(preset.name for preset in PRESETS)
        raise ModelError(f"{text!r} is no model: it must be {FORMS.format(names)}; there is no such folder")
    known = by_repo(repo)
    return Source(repo=repo, commit=commit or (known.commit if known else None))
