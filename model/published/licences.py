"""What is said of the licences of a model's parts: what we know of each repository, then what its authors' file says.

Knows no Hub. A file beside the weights never takes the place of what we know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compile_cache.errors import shown

from .presets import CARD, by_repo

LONGEST = 400  # characters of all; manifests of binaries repeat it
QUOTED = 120  # of what one file says


@dataclass(frozen=True)
class Licence:
    """What is known of the licence of one source; non_commercial None: its card says."""

    source: str
    text: str
    non_commercial: bool | None = None


def licence_of(repo: str, told: str = "") -> Licence:
    """Of a repository on the Hub. told: the licence in its onegraph.json."""
    preset = by_repo(repo)
    known = (
        Licence(repo, f"not known; {CARD}") if preset is None else Licence(repo, preset.licence, preset.non_commercial)
    )
    quoted = f"; its onegraph.json says “{shown(told, QUOTED)}”" if told.strip() else ""
    return Licence(repo, known.text + quoted, known.non_commercial)


def all_of(licences: Sequence[Licence], repo: str, own: str) -> str:
    """One line: that of the transformer's repository, or `own` for one in a folder; then the others', by source.

    Of the others those that forbid something come first, so that a line too long never loses them.
    """
    first = [licence.text for licence in licences if licence.source == repo] or ([shown(own, QUOTED)] if own else [])
    others = sorted((licence for licence in licences if licence.source != repo), key=lambda it: not it.non_commercial)
    return shown("; ".join([*first, *(f"{licence.source}: {licence.text}" for licence in others)]), LONGEST)
