"""The rollout's control flow, eagerly: against the reference loop, and the properties of its state."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model.binary import open_runner
from model.parts import load_parts
from model.pipeline import GenerationError, Limits, Pipeline, Report, Request
from tests.fixtures.folders import make_folder
from tests.model.reference import Decisions, roll

SIZE = {"height": 64, "width": 96}
# What each case forces; 1e3 stands for "whatever comes", since latents are of the order of 1.
CASES = {
    "plain": dict(steps=4),
    "two steps": dict(steps=2),
    "one step": dict(steps=1, resample_above=0.0, skip_below=1e3),  # nothing to compare: no decision is taken
    "every block resampled": dict(steps=3, max_attempts=2, resample_above=0.0),
    "two blocks resampled": dict(steps=3, max_attempts=1, resample_above=0.0, resample_blocks=2),
    "some blocks resampled": dict(steps=3, max_attempts=1, resample_above="some"),
    "every block shortened": dict(steps=4, skip_below=1e3),
    "shortened too early to tell": dict(steps=4, max_attempts=1, skip_below=1e3, resample_above=0.0),
    "shortened, then resampled": dict(steps=6, max_attempts=1, skip_below="some", resample_above=0.0),
    "still": dict(steps=2, still_below=1e3),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "random")


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Pipeline:
    return Pipeline(folder, open_runner(folder, "eager", "float32"))


def video(pipeline: Pipeline, request: Request, blocks_per_call: int = 1) -> tuple[np.ndarray, Report]:
    blocks = list(pipeline.stream(request, blocks_per_call))
    assert [block.index for block in blocks] == list(range(len(blocks)))
    return np.concatenate([block.frames for block in blocks]), blocks[-1].report


def reference(folder: Path, pipeline: Pipeline, seed: int, blocks: int, **case) -> tuple[np.ndarray, Decisions]:
    modules = load_parts(folder, "float32").modules()
    ids, mask = pipeline._tokenizer.encode("a red ball")
    cross = [tensor.detach() for tensor in modules["condition"](ids, mask)]
    decisions = Decisions(**case)
    generate = modules["generate"]
    frames = roll(generate.transformer, generate.vae, pipeline.config, cross,
                  seed=seed, blocks=blocks, decisions=decisions, **SIZE)  # fmt: skip
    return frames.numpy(), decisions


@pytest.mark.parametrize("name", CASES)
def test_frames_and_report_equal_the_reference_loop(folder: Path, pipeline: Pipeline, name: str) -> None:
    case, blocks = dict(CASES[name]), 5
    for limit in ("resample_above", "skip_below"):
        if case.get(limit) == "some":
            case[limit] = a_limit_for_some(pipeline, limit, case["steps"], blocks)
    expected, decisions = reference(folder, pipeline, 7, blocks, **case)
    limits = Limits(**{key: value for key, value in case.items() if key != "steps"})
    if "max_attempts" not in case:
        limits = replace(limits, max_attempts=0)
    frames, report = video(pipeline, Request("a red ball", 7, blocks, **SIZE, steps=case["steps"], limits=limits))
    assert np.array_equal(frames, expected)
    made = 1 if name == "still" else blocks
    assert report == Report(
        blocks=made, forwards=decisions.forwards, steps=decisions.denoised, resampled=decisions.resampled,
        skipped=decisions.skipped, stop_reason="still" if name == "still" else "full",
    )  # fmt: skip
    counts = {"every block resampled": (2 * blocks, 0), "two blocks resampled": (2, 0),
              "every block shortened": (0, 2 * blocks), "shortened too early to tell": (0, 2 * blocks)}  # fmt: skip
    if name == "some blocks resampled":
        assert 0 < report.resampled < blocks
    elif name == "shortened, then resampled":
        assert report.resampled > 0
        assert 0 < report.skipped < 4 * blocks
    else:
        assert (report.resampled, report.skipped) == counts.get(name, (0, 0))


def a_limit_for_some(pipeline: Pipeline, name: str, steps: int, blocks: int) -> float:
    """A limit that some blocks or steps are within and others are not, by bisection."""
    count, most = ("resampled", blocks) if name == "resample_above" else ("skipped", (steps - 2) * blocks)
    low, high = 0.0, 16.0
    for _ in range(40):
        middle = (low + high) / 2
        limits = Limits(**{name: middle})
        _, report = video(pipeline, Request("a red ball", 7, blocks, **SIZE, steps=steps, limits=limits))
        found = getattr(report, count)
        if 0 < found < most:
            return middle
        # More is resampled as its limit falls, more is skipped as its limit rises.
        low, high = (middle, high) if (found > 0) == (count == "resampled") else (low, middle)
    raise AssertionError("all blocks change alike")


def test_a_model_may_have_rules_of_its_own_and_a_request_others(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "ruled", resample_above=0.0, max_attempts=2, skip_below=None)
    ruled, size = Pipeline(folder, open_runner(folder, "eager", "float32")), {"height": 64, "width": 64}
    for limits, counts in ((None, (2, 0)), (Limits(), (0, 0)), (Limits(skip_below=1e3), (0, 2))):
        _, report = video(ruled, Request("a red ball", 3, 1, **size, limits=limits))
        assert (report.resampled, report.skipped) == counts


def test_one_call_equals_many(pipeline: Pipeline) -> None:
    request = Request("a red ball", 3, 5, **SIZE)
    streamed, report = video(pipeline, request)
    for room in (2, 5):
        frames, same = video(pipeline, request, room)
        assert np.array_equal(frames, streamed)
        assert same == report


def test_frames_per_block_and_determinism(pipeline: Pipeline) -> None:
    request = Request("a red ball", 3, 3, 64, 64)
    frames, _ = video(pipeline, request)
    assert frames.shape == (33, 64, 64, 3)
    assert np.array_equal(video(pipeline, request)[0], frames)
    for other in (Request("a red ball", 4, 3, 64, 64), Request("a blue cube", 3, 3, 64, 64)):
        assert not np.array_equal(video(pipeline, other)[0], frames)


def test_a_longer_video_begins_with_the_shorter(pipeline: Pipeline) -> None:
    """Past the window too: the ring holds three blocks."""
    long, _ = video(pipeline, Request("a red ball", 3, 8, 64, 64))
    short, _ = video(pipeline, Request("a red ball", 3, 5, 64, 64))
    assert np.array_equal(long[: len(short)], short)


def test_a_sink_is_kept(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "sink", sink_blocks=1, window_blocks=2)
    sunk = Pipeline(folder, open_runner(folder, "eager", "float32"))
    frames, report = video(sunk, Request("a red ball", 3, 7, 64, 64))
    assert len(frames) == 81
    assert report.blocks == 7
    modules = load_parts(folder, "float32").modules()
    cross = list(modules["condition"](*sunk._tokenizer.encode("a red ball")))
    generate = modules["generate"]
    expected = roll(generate.transformer, generate.vae, sunk.config, cross, seed=3, blocks=7, height=64, width=64,
                    decisions=Decisions(4))  # fmt: skip
    assert np.array_equal(frames, expected.numpy())


def test_latents_that_are_not_finite_stop_the_video(folder: Path) -> None:
    runner = open_runner(folder, "eager", "float32")
    runner._modules["generate"].transformer.proj_out.bias.data.fill_(float("nan"))
    broken = Pipeline(folder, runner)
    with pytest.raises(GenerationError, match="not finite in block 1") as stopped:
        next(broken.stream(Request("a red ball", 3, 3, 64, 64)))
    assert stopped.value.report == Report(0, forwards=1, steps=1, stop_reason="not finite")


def test_what_was_made_before_the_numbers_broke_is_kept(folder: Path, pipeline: Pipeline) -> None:
    runner = open_runner(folder, "eager", "float32")
    stream = Pipeline(folder, runner).stream(Request("a red ball", 3, 5, 64, 64))
    frames = [next(stream).frames, next(stream).frames]
    runner._modules["generate"].transformer.proj_out.bias.data.fill_(float("inf"))
    with pytest.raises(GenerationError, match="not finite in block 3"):
        next(stream)
    sound, _ = video(pipeline, Request("a red ball", 3, 2, 64, 64))
    assert np.array_equal(np.concatenate(frames), sound)


def test_a_new_pipeline_is_not_poisoned(folder: Path) -> None:
    sound = Pipeline(folder, open_runner(folder, "eager", "float32"))
    assert len(video(sound, Request("a red ball", 3, 1, 64, 64))[0]) == 9
