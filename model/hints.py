"""What a model's onegraph.json says that it knows, with example prompts; the hint to a visitor who asks for more.

Which words of a prompt a model does not know is for text.py to say. Nothing of this is part of a binary's key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compile_cache.errors import shown

from .config import ConfigError

MOST, LONGEST = 40, 100  # values or example prompts, and characters of each
MOST_THINGS = 1000
NAMED, CUT = 3, 24  # unknown words that a hint repeats, and characters of each


@dataclass(frozen=True)
class World:
    """What a model folder may say; a model that knows any words says nothing."""

    knows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # attribute -> its values, in words for visitors
    things: frozenset[str] = frozenset()  # every word, in lower case, that names something it can show
    examples: tuple[str, ...] = ()  # prompts

    def facts(self) -> dict[str, str]:
        """Attribute, in the plural -> its values in a row."""
        return {f"{name}s": ", ".join(_shortened(values)) for name, values in self.knows.items()}

    def hint(self, known: Sequence[str], unknown: Sequence[str]) -> str | None:
        """What to tell who asked with these words, in a sentence or two; None where there is nothing to tell."""
        if not self.knows or not unknown:
            return None
        begin, one = f"This small model does not know {_quoted(unknown)}, and", len(unknown) == 1
        if self.things.intersection(known):
            return f"{begin} passes {'it' if one else 'them'} over."
        facts = "; ".join(f"the {name} {values}" for name, values in self.facts().items())
        return f"{begin} makes something else instead. It knows {facts}."


def read_world(values: Mapping[str, Any], origin: str) -> World:
    """What the values of an onegraph.json say. Raises ConfigError naming `origin` and the field."""
    knows = values.get("knows", {})
    if not isinstance(knows, dict) or len(knows) > MOST:
        raise ConfigError(f"{origin}: field 'knows' must be an object of at most {MOST} attributes")
    _texts(list(knows), "knows", origin)
    return World(
        {name: _texts(words, f"knows.{name}", origin) for name, words in knows.items()},
        frozenset(_texts(values.get("things", []), "things", origin, MOST_THINGS)),
        _texts(values.get("examples", []), "examples", origin),
    )


def _texts(values: Any, name: str, origin: str, most: int = MOST) -> tuple[str, ...]:
    def good(text: Any) -> bool:
        return isinstance(text, str) and 0 < len(text) <= LONGEST and text.isprintable()

    if not isinstance(values, list) or len(values) > most or not all(map(good, values)):
        allowed = f"a list of at most {most} printable texts of 1 to {LONGEST} characters"
        raise ConfigError(f"{origin}: field {name!r} must be {allowed}")
    return tuple(values)


def _quoted(words: Sequence[str]) -> str:
    told = [f"“{shown(word, CUT)}”" for word in words[:NAMED]]
    more = [f"{len(words) - NAMED} more"] if len(words) > NAMED else []
    *first, last = told + more
    return f"{', '.join(first)} and {last}" if first else last


def _shortened(values: Sequence[str]) -> list[str]:
    """Without a first word that is that of the value before: moving left, right, up; in a meadow, the desert."""
    told, before = [], None
    for value in values:
        first, _, rest = value.partition(" ")
        told.append(rest if rest and first == before else value)
        before = first
    return told
