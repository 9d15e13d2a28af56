"""What a request may ask for, and what is said where it asks too much."""

from pathlib import Path

import pytest

from model.pipeline import Limits, Pipeline, Request, RequestError
from model.text import clean
from tests.fixtures.folders import make_folder


class NoRunner:
    """Checks come before anything runs."""


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return Pipeline(make_folder(tmp_path_factory.mktemp("model") / "random"), NoRunner())


BAD = {
    "empty prompt": (dict(prompt=""), "prompt is empty"),
    "only spaces": (dict(prompt=" \n\t "), "prompt is empty"),
    "only control characters": (dict(prompt="\x00\x07"), "prompt is empty"),
    "100,000 characters": (dict(prompt="a" * 100_000), "100,000 characters; 2,000 are allowed"),
    "seed -1": (dict(seed=-1), "seed must be a whole number from 0 to 9223372036854775807"),
    "seed 2**63": (dict(seed=2**63), "seed must be a whole number"),
    "seed abc": (dict(seed="abc"), "seed must be a whole number"),
    "seed 1.5": (dict(seed=1.5), "seed must be a whole number"),
    "no block": (dict(blocks=0), "number of blocks must be a whole number from 1 to 1000"),
    "negative blocks": (dict(blocks=-3), "number of blocks"),
    "huge number of blocks": (dict(blocks=10**12), "number of blocks"),
    "no step": (dict(steps=0), "number of steps must be a whole number from 1 to 8"),
    "many steps": (dict(steps=9), "number of steps"),
    "size off the grid": (dict(height=100), "multiples of 16 from 32 to 1024 pixels, for example 64x64, 64x96"),
    "size zero": (dict(width=0), "multiples of 16"),
    "negative size": (dict(width=-64), "multiples of 16"),
    "huge size": (dict(height=2**20), "multiples of 16"),
    "negative limit": (dict(limits=Limits(skip_below=-1.0)), "skip_below must be a number from 0 to 1000"),
    "limit not a number": (dict(limits=Limits(still_below=float("nan"))), "still_below"),
    "infinite limit": (dict(limits=Limits(resample_above=float("inf"))), "resample_above"),
    "many attempts": (dict(limits=Limits(max_attempts=10**6)), "number of attempts"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_are_told_what_is_allowed(pipeline: Pipeline, case: str) -> None:
    change, words = BAD[case]
    request = Request(**{"prompt": "a red ball", "height": 64, "width": 64, **change})
    with pytest.raises(RequestError, match=words.replace("*", r"\*")):
        pipeline.check(request)
    with pytest.raises(RequestError):
        next(pipeline.stream(request))


@pytest.mark.parametrize(
    ("typed", "cleaned"),
    [
        ("  a\tred \n ball ", "a red ball"),
        ("a\x00 red\x1b[31m ball", "a red ball"),
        ("&amp;lt;b&amp;gt;", "<b>"),
        ("e\u0301", "é"),
        ("🙂 a red ball", "🙂 a red ball"),
        ("كرة حمراء", "كرة حمراء"),
        ("\ud800 ball", "\ufffd ball"),
    ],
)
def test_prompts_are_cleaned(pipeline: Pipeline, typed: str, cleaned: str) -> None:
    assert clean(typed) == cleaned
    assert pipeline.check(Request(typed, height=64, width=64)).prompt == cleaned
    ids, mask = pipeline._tokenizer.encode(cleaned)
    assert ids.shape == mask.shape == (1, 16)


@pytest.mark.parametrize("room", [0, -1, 10**6])
def test_blocks_per_call_are_checked(pipeline: Pipeline, room: int) -> None:
    with pytest.raises(RequestError, match="blocks per call must be a whole number from 1 to 1000"):
        next(pipeline.stream(Request("a red ball", height=64, width=64), room))


def test_a_long_prompt_is_cut_to_the_models_length(pipeline: Pipeline) -> None:
    ids, mask = pipeline._tokenizer.encode("a red ball " * 50)
    assert ids.shape == (1, 16)
    assert mask.sum() == 16


def test_a_word_that_the_tokenizer_gives_an_id_out_of_range_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    file = folder / "tokenizer" / "tokenizer.json"
    file.write_text(file.read_text().replace('"ball":10', '"ball":999999').replace('"ball": 10', '"ball": 999999'))
    pipeline = Pipeline(folder, NoRunner())
    assert pipeline.check(Request("a red cube", height=64, width=64)).prompt == "a red cube"
    with pytest.raises(RequestError, match=r"tokenizer cannot be used for this prompt: .* the id 999999"):
        pipeline.check(Request("a red ball", height=64, width=64))
