"""The compiled graph of the embedded model: its bits, its control flow, its length, and what it is made of."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from compile_cache.errors import InputMismatch
from compile_cache.store import LocalStore
from model.binary import open_runner
from model.pipeline import Limits, Pipeline, Request
from tests.conftest import EMBEDDED

SEEDS = [0, 1, 2, 3, 42, 1234, 2**31, 2**32 + 5, 2**53 + 1, 2**63 - 1]
SIZES = [[128, 128], [96, 160]]
Python = Callable[..., str]
Built = Callable[[str], dict]


def videos(python: Python, **job: object) -> dict:
    job = {"mode": "aot", "dtype": "auto", "threads": 2, "blocks_per_call": 1, "seeds": [0], "sizes": SIZES[:1],
           "blocks": 7} | job  # fmt: skip
    return json.loads(python("-m", "tests.model.videos", json.dumps(job)))


@pytest.fixture
def pipeline(cache: Path, built: Built) -> Pipeline:
    built("auto")
    return Pipeline(EMBEDDED, open_runner(EMBEDDED, "aot", sources=[LocalStore(cache)]))


def test_the_same_bits_streamed_or_at_once_with_one_or_two_threads(python: Python, built: Built) -> None:
    built("auto")
    at_once = videos(python, threads=1, blocks_per_call=7, seeds=SEEDS, sizes=SIZES)["digests"]
    streamed = videos(python, threads=2, blocks_per_call=1, seeds=SEEDS, sizes=SIZES)["digests"]
    assert at_once == streamed
    assert len(set(at_once.values())) == len(SEEDS) * len(SIZES)


LOAD = """
import json, os, sys
import model
before = [os.environ["GOMP_SPINCOUNT"], "torch" in sys.modules]
from model.binary import open_runner
runner = open_runner({folder!r}, "aot")
heavy = [name for name in ("transformers", "torch._dynamo", "torch._inductor") if name in sys.modules]
print(json.dumps([before, heavy]))
"""


def test_loading_imports_neither_transformers_nor_the_compiler(python: Python, built: Built) -> None:
    """Each takes longer than all the rest; and the waiting of CPU threads is settled before torch reads it."""
    built("auto")
    assert json.loads(python("-c", LOAD.format(folder=str(EMBEDDED)))) == [["4000", False], []]


def test_any_length_on_one_binary_at_constant_memory(python: Python, built: Built) -> None:
    built("auto")
    short, medium = (videos(python, blocks=blocks) for blocks in (3, 40))
    long = videos(python, blocks=200, sizes=[[64, 64]])
    assert {run["mode"] for run in (short, medium, long)} == {"aot"}
    assert len({*short["digests"].values(), *medium["digests"].values(), *long["digests"].values()}) == 3
    # The allocator takes and gives back some 20 MB at every block: a leak would raise the floor below that.
    early, late = min(long["memory"][10:60]), min(long["memory"][-50:])
    assert late - early <= 4, f"grew from {early:.1f} to {late:.1f} MB"


def test_eager_and_compiled_differ_by_rounding_only(python: Python, built: Built, tmp_path: Path) -> None:
    """float32: at most 2 levels of 255 anywhere and 0.01 on average, over seven blocks."""
    built("float32")
    seeds = SEEDS[:3]
    for mode in ("eager", "aot"):
        videos(python, mode=mode, dtype="float32", seeds=seeds, save=str(tmp_path / f"{mode}.npz"))
    eager, compiled = (np.load(tmp_path / f"{mode}.npz") for mode in ("eager", "aot"))
    for name in eager.files:
        difference = np.abs(eager[name].astype(np.int16) - compiled[name])
        assert difference.max() <= 2, name
        assert difference.mean() <= 0.01, name


CASES = {
    "resampled": Limits(max_attempts=2, resample_above=0.0),
    "skipped": Limits(skip_below=1000.0),
    "still": Limits(still_below=1000.0),
    "plain": Limits(),
}


@pytest.mark.parametrize("name", CASES)
def test_decisions_are_taken_inside_the_binary(cache: Path, python: Python, built: Built, name: str) -> None:
    """The same report as eagerly, where the reference loop of test_generator.py has proved it; frames as above."""
    built("float32")
    request = Request("a big red circle moving right in the snow", 5, 3, 128, 128, limits=CASES[name])
    runs = {}
    for mode in ("eager", "aot"):
        pipeline = Pipeline(EMBEDDED, open_runner(EMBEDDED, mode, "float32", [LocalStore(cache)]))
        blocks = list(pipeline.stream(request))
        runs[mode] = np.concatenate([block.frames for block in blocks]), blocks[-1].report
    (eager, expected), (compiled, report) = runs["eager"], runs["aot"]
    assert report == expected
    wanted = {
        "resampled": dict(resampled=6, forwards=3 * 13),
        "skipped": dict(skipped=6, steps=6),
        "still": dict(blocks=1, stop_reason="still"),
        "plain": dict(blocks=3, forwards=15, stop_reason="full"),
    }
    assert report.as_dict().items() >= wanted[name].items()
    difference = np.abs(eager.astype(np.int16) - compiled)
    assert difference.max() <= 2
    assert difference.mean() <= 0.01


def test_the_graph_has_a_loop_and_a_branch_and_the_package_no_weights(cache: Path, built: Built) -> None:
    entry = LocalStore(cache).find(built("auto")["key"])
    ops = entry.manifest.figures["generate"].ops
    assert ops["while_loop"] == 1
    assert ops["cond"] == 1
    weights = sum(file.stat().st_size for file in EMBEDDED.rglob("*.safetensors"))
    with zipfile.ZipFile(entry.package) as package:
        names = package.namelist()
    assert not [name for name in names if name.endswith((".pt", ".pth", ".bin", ".safetensors", ".pkl"))]
    assert entry.package.stat().st_size < weights / 4


def test_a_failed_run_does_not_poison_the_next(pipeline: Pipeline) -> None:
    request = Request("a blue square moving up", 9, 1, 128, 128)
    before = [block.frames for block in pipeline.stream(request)]
    with pytest.raises(InputMismatch, match="generate"):
        pipeline.runner.run("generate", [])
    after = [block.frames for block in pipeline.stream(request)]
    assert np.array_equal(before[0], after[0])


def test_a_binary_for_other_weights_of_the_same_shape_is_the_same_binary(cache: Path, built: Built) -> None:
    """Weights are bound when a binary is loaded and their values are not in its key."""

    from compile_cache.key import key_of
    from model.binary import binary_fields
    from model.parts import load_parts

    parts = load_parts(EMBEDDED)
    for tensor in parts.weights():
        tensor.detach().zero_()
    assert key_of(binary_fields(parts)) == built("auto")["key"]


DAMAGE = {
    "truncated": lambda package, content: package.write_bytes(content[: len(content) // 2]),
    "one bit flipped": lambda package, content: package.write_bytes(
        content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]
    ),
    "empty": lambda package, content: package.write_bytes(b""),
    "gone": lambda package, content: package.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_binary_is_never_loaded_and_eager_serves(
    cache: Path, built: Built, tmp_path: Path, damage: str
) -> None:
    key = built("auto")["key"]
    sound = LocalStore(cache).find(key)
    store = LocalStore(tmp_path / "store")
    entry = store.put(sound.manifest, sound.package)
    content = entry.package.read_bytes()
    entry.package.chmod(0o600)
    DAMAGE[damage](entry.package, content)
    runner = open_runner(EMBEDDED, "auto", sources=[store])
    assert runner.mode == "eager"
    assert "local cache" in runner.origin.reason
    again = open_runner(EMBEDDED, "auto", sources=[store, LocalStore(cache)])
    assert (again.mode, again.origin.key) == ("aot", key), "the next source serves"
