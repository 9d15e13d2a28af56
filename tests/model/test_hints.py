"""What is told to who asks for more than the model knows; and that the page's examples are what it knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model.config import ConfigError
from model.hints import CUT, LONGEST, MOST, read_world
from model.text import PromptTokenizer, clean
from model.training import captions, export
from tests.conftest import EMBEDDED, ROOT
from tests.model.test_text import TEXT
from tests.model.test_text import write_tokenizer as write_pieces

WORLD = read_world(export.onegraph(), "test")
KNOWS = "It knows the colours red, orange, yellow, green, blue, purple, pink, white; the shapes circle, square, "
HINTS = {  # prompt: (the beginning, the end) of the hint
    "a big red circle moving left at night": None,
    "Crimson ball, drifts to the right!": None,
    "at night": None,  # any thing is right
    "🔴": None,
    "a beautiful red ball": ("This small model does not know “beautiful”, and passes it over.",) * 2,
    "my ball, MY plus sign": ("This small model does not know “MY”, and passes it over.",) * 2,
    "don't (please) show a ball": ("", "know “don't”, “please” and “show”, and passes them over."),
    "a zebra": (f"This small model does not know “zebra”, and makes something else instead. {KNOWS}",
                "at night, in the sky, at sunset, in a meadow, the desert, the snow, at sea, in the city."),
    "one two three four five six": ("This small model does not know “two”, “three”, “four” and 2 more, and makes", "."),
    "b" * 500: (f"This small model does not know “{'b' * (CUT - 1)}…”, and makes", "city."),
    "a ball " + "the " * captions.TEXT_LENGTH + "zebra": None,  # is not read
    "a <unk> <b>x</b>y": ("This small model does not know “unk” and “b>x</b>y”, and makes", "."),
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PromptTokenizer:
    folder = tmp_path_factory.mktemp("words")
    captions.write_tokenizer(folder / "tokenizer")
    return PromptTokenizer(folder, captions.TEXT_LENGTH, len(captions.vocabulary()))


@pytest.mark.parametrize("prompt", HINTS)
def test_hints(tokenizer: PromptTokenizer, prompt: str) -> None:
    hint, told = WORLD.hint(*tokenizer.words(clean(prompt))), HINTS[prompt]
    if told is None:
        assert hint is None
    else:
        assert hint.startswith(told[0])
        assert hint.endswith(told[1])
        assert len(hint) < 700


def test_a_model_that_says_nothing_of_itself_gives_no_hint() -> None:
    assert read_world({"title": "another"}, "test").hint([], ["zebra"]) is None


def test_nothing_is_unknown_where_words_are_spelt_in_pieces(tmp_path: Path) -> None:
    write_pieces(tmp_path)
    known, unknown = PromptTokenizer(tmp_path, 32, TEXT["vocab_size"]).words("a zebra Ж")
    assert "▁a" in known
    assert not unknown


WRONG = [
    ({"knows": ["red"]}, "'knows' must be an object"),
    ({"knows": {"colour": "red"}}, "'knows.colour' must be a list"),
    ({"knows": {"colour": ["red", 3]}}, "'knows.colour'"),
    ({"knows": {"two\nlines": []}}, "'knows' must be"),
    ({"things": None}, "'things' must be a list"),
    ({"examples": ["a ball\n"]}, "'examples' must be a list of at most"),
    ({"examples": ["a" * (LONGEST + 1)]}, "'examples'"),
    ({"examples": ["a"] * (MOST + 1)}, "'examples'"),
]


@pytest.mark.parametrize(("values", "words"), WRONG)
def test_what_a_model_may_not_say_of_itself(values: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^onegraph.json: field {words}"):
        read_world(values, "onegraph.json")


def test_the_embedded_model_says_what_its_captions_say() -> None:
    assert json.loads((EMBEDDED / "onegraph.json").read_text()) == json.loads(json.dumps(export.onegraph()))


def test_examples_are_of_this_world_and_show_much_of_it(tokenizer: PromptTokenizer) -> None:
    meant: dict[str, list[str]] = {name: [] for name in captions.WORDS}
    for example in captions.EXAMPLES:
        known, unknown = tokenizer.words(example)
        assert not unknown
        assert WORLD.things.intersection(known)
        padded = " ".join(["", *known, ""])
        for name, values in captions.WORDS.items():
            found = [v for v, options in values.items() if any(f" {option} " in padded for option in options)]
            meant[name] += found
    for name, values in meant.items():
        if name != "size":
            assert len(set(values)) == len(values) == len(captions.EXAMPLES), (name, values)
    canonical = {option for values in captions.WORDS.values() for options in values.values() for option in options[:1]}
    assert not any(option in captions.EXAMPLES[-1] for option in canonical), "the last one is in other words"


def test_the_readme_lists_this_world() -> None:
    section = (ROOT / "README.md").read_text("utf-8").split("\n## What the embedded model knows\n")[1].split("\n## ")[0]
    rows = [[cell.strip(" …") for cell in line.split("|")[1:-1]] for line in section.splitlines() if line[:1] == "|"]
    listed = {name: (values.split(", "), also.split(", ")) for name, values, also in rows if name in captions.WORDS}
    assert set(listed) == set(captions.WORDS)
    for name, values in captions.WORDS.items():
        canonical, also = listed[name]
        assert canonical == [options[0] for options in values.values()]
        assert set(also) < {option for options in values.values() for option in options[1:]}
