"""MODEL_ID or --model -> a folder that has every part, fetched and put together where needed.

The settings of all parts are fetched and checked before any weights are fetched. What is put together from several
places is a folder of links in the cache, with sources.json that says where each part comes from.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from compile_cache.deadline import Limits, megabytes
from compile_cache.errors import shown
from compile_cache.place import default_root

from ..config import ModelConfig, read_json
from ..progress import Progress, quiet
from .checks import check, check_made
from .hub_model import LIMITS, HubModel, check_room, open_model
from .layout import PARTS, ROLLOUT, find, lacking, local_files, read_rollout, settings_of, weights_of
from .licences import Licence, all_of, licence_of
from .model_id import ModelError, Source, of_preset, parse
from .presets import BASE, default_rollout

RECORD = "sources.json"
MAX_SETTINGS = 64 * 2**20  # bytes; the largest known, UMT5's tokenizer.json, has 17 MB


@dataclass(frozen=True)
class Located:
    """A folder to load from; part -> its source, with the commit; a licence for each source that is not a folder."""

    folder: Path
    sources: Mapping[str, str] = field(default_factory=dict)
    licences: tuple[Licence, ...] = ()


def locate(
    text: str | Path,
    *,
    base: Source | None = None,
    cache: Path | None = None,
    endpoint: str | None = None,
    limits: Limits = LIMITS,
    weights: bool = True,
    progress: Progress = quiet,
) -> Located:
    """The model that `text` names; see model_id.py for what it may say.

    base: where parts come from that no named source has. cache: for folders that are put together. endpoint: the
    Hub's address. weights: False for a folder that need have the settings only. progress(bytes here, bytes expected),
    of everything that is downloaded. Raises ModelError, ConfigError or WeightsError, each with one sentence on what is
    wrong.
    """
    sources = parse(str(text))
    if len(sources) == 1 and sources[0].folder is not None and _complete(sources[0].folder):
        return _as_it_is(sources[0].folder)
    opened = [_Opened.of(source, endpoint, limits) for source in sources]
    with _unlisted(opened):
        chosen = _choose(opened)
        if set(chosen) != set(PARTS):
            opened.append(_Opened.of(base or of_preset(BASE), endpoint, limits))
            chosen = _choose(opened)
        absent = [part for part in PARTS if part not in chosen]
        if absent:
            raise ModelError(f"{opened[-1].source} has no {' and no '.join(absent)} in diffusers layout")

    for part, place in chosen.items():
        place.fetch_settings(settings_of(part, place.found[part], place.files))
    first = chosen["transformer"]
    if ROLLOUT in first.files:
        first.fetch_settings([ROLLOUT])
    folders = {part: place.folder / place.found[part] for part, place in chosen.items()}
    named = {part: str(place) for part, place in chosen.items()}
    values = read_rollout(first.folder / ROLLOUT) or _rollout(first.source)
    config = check(folders, named, values)
    told = {first.source.repo: config.rollout.licence if ROLLOUT in first.files else ""}
    repos = dict.fromkeys(place.source.repo for place in chosen.values() if place.model is not None)
    licences = tuple(licence_of(repo, told.get(repo, "")) for repo in repos)
    values = values | {"licence": all_of(licences, first.source.repo, config.rollout.licence)}
    with _unlisted(opened):
        if weights:
            _fetch_weights(chosen, config, folders["tokenizer"], progress)
    record = {"model": str(text), "sources": named, "licences": [vars(licence) for licence in licences]}
    root = (cache or default_root()[0]) / "models"
    return Located(_compose(root, folders, values, record), named, licences)


@dataclass(frozen=True, eq=False)
class _Opened:
    """A source whose files are known."""

    source: Source
    files: Mapping[str, int]
    found: Mapping[str, str]
    folder: Path
    model: HubModel | None = None

    @staticmethod
    def of(source: Source, endpoint: str | None, limits: Limits) -> _Opened:
        if source.folder is not None:
            files = local_files(source.folder)
            return _Opened(source, files, find(files), source.folder)
        preset = source.preset
        if preset is not None and preset.checkpoints:
            raise ModelError(_convert(source, preset.checkpoints))
        model = open_model(source.repo, source.commit, endpoint, limits)
        found = find(model.files)
        if preset is not None and not preset.transformer:
            found.pop("transformer", None)
        return _Opened(source, model.files, found, model.folder, model)

    def __str__(self) -> str:
        return str(self.model or self.source)

    def fetch_settings(self, names: list[str]) -> None:
        """Raises ModelError, before anything is fetched, where one is too large to be one."""
        for name in names:
            if self.files[name] > MAX_SETTINGS:
                size, allowed = megabytes(self.files[name]), megabytes(MAX_SETTINGS)
                raise ModelError(f"{self}: {name} has {size}; a file of settings may have {allowed}")
        self.fetch(names)

    def fetch(self, names: list[str], progress: Progress = quiet) -> None:
        if self.model is not None:
            self.model.download(names, progress)


def _complete(folder: Path) -> bool:
    """Whether a folder is to be taken as it is: it has settings of its own and something of every part."""
    return (folder / ROLLOUT).is_file() and all((folder / part).is_dir() for part in PARTS)


@contextmanager
def _unlisted(opened: list[_Opened]) -> Iterator[None]:
    """Where the Hub is away, what seems to be missing in a repository may only be missing here."""
    try:
        yield
    except ModelError as error:
        unlisted = [place.source.repo for place in opened if place.model is not None and not place.model.listed]
        if not unlisted:
            raise
        why = f"the Hub is not asked or cannot be reached, and of {', '.join(unlisted)} only what is in this machine's"
        raise ModelError(f"{error}; {why} cache is known") from None


def _as_it_is(folder: Path) -> Located:
    """A folder that is complete. Raises ConfigError or ModelError where its settings are none that we can run."""
    check({part: folder / part for part in PARTS}, dict.fromkeys(PARTS, str(folder)), read_json(folder / ROLLOUT))
    return Located(folder)


def _choose(opened: list[_Opened]) -> dict[str, _Opened]:
    """Part -> the first source that has it. Raises ModelError where one has it in part, or nobody the transformer."""
    chosen: dict[str, _Opened] = {}
    for part in PARTS:
        for place in opened:
            if part in place.found:
                chosen[part] = place
                break
            preset = place.source.preset
            why = None if preset is not None and not preset.transformer else lacking(part, place.files)
            if why is not None:
                convert = "; see python -m model convert" if "pickles" in why else ""
                raise ModelError(f"{place}: of its {part} it has {why}{convert}")
    if "transformer" not in chosen:
        first = opened[0].source
        if first.preset is not None:
            raise ModelError(f"{first.repo}'s transformer is not causal; name one that is, as self-forcing+{first}")
        raise ModelError(f"{opened[0]} has no transformer in diffusers layout (transformer/config.json, safetensors)")
    return chosen


def _fetch_weights(chosen: Mapping[str, _Opened], config: ModelConfig, tokenizer: Path, progress: Progress) -> None:
    """Where some are not here yet, everything else is made before."""
    wanted: dict[_Opened, list[str]] = {}
    for part, place in chosen.items():
        wanted.setdefault(place, []).extend(weights_of(part, place.found[part], place.files, place.folder, str(place)))
    remote = {place: names for place, names in wanted.items() if place.model is not None}
    sizes = {place: place.model.to_fetch(names) for place, names in remote.items()}
    total, before = sum(sizes.values()), 0
    if total:
        check_made(config, tokenizer)
    check_room(total)
    for place, names in remote.items():
        place.fetch(names, lambda done, _, before=before: progress(before + done, total))
        before += sizes[place]


def _rollout(source: Source) -> dict[str, Any]:
    """The sampling of a model that says nothing of it: its preset's, or Self-Forcing's."""
    if source.preset is not None:
        return source.preset.onegraph()
    return default_rollout() | {"title": shown(source.repo or Path(str(source)).name, 200), "licence": ""}


def _convert(source: Source, checkpoints: tuple[str, ...]) -> str:
    merge = f" --lora {checkpoints[1]}" if len(checkpoints) > 1 else ""
    return (
        f"{source.repo} has only pickles, which can run code; download {' and '.join(checkpoints)} and convert: "
        f"python -m model convert {checkpoints[0]} FOLDER{merge} --preset {source.preset.name}, "
        "then name FOLDER as the model"
    )


def _compose(root: Path, folders: Mapping[str, Path], rollout: Mapping[str, Any], record: Mapping[str, Any]) -> Path:
    """A folder of links to the parts; one that is there already is taken."""
    links = {part: str(folder.absolute()) for part, folder in sorted(folders.items())}
    name = sha256(json.dumps([links, rollout], sort_keys=True).encode()).hexdigest()[:16]
    folder = root / name
    if folder.is_dir():
        return folder
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=".", dir=root))
        for part, target in links.items():
            (building / part).symlink_to(target, target_is_directory=True)
        (building / ROLLOUT).write_text(json.dumps(rollout, indent=2) + "\n", "utf-8")
        (building / RECORD).write_text(json.dumps(record, indent=2) + "\n", "utf-8")
        try:
            os.rename(building, folder)
        except OSError:
            shutil.rmtree(building, ignore_errors=True)
            if not folder.is_dir():  # nobody else made it meanwhile
                raise
    except OSError as error:
        raise ModelError(f"{root} cannot hold the model's folder: {error.strerror or error}") from None
    return folder
