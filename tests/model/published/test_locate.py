"""MODEL_ID: every known layout loads from a stand-in Hub, nothing more than needed is fetched, every fault is named."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import _tree_cache, constants
from safetensors.torch import load_file

from compile_cache.deadline import Limits
from compile_cache.errors import CompileCacheError
from model.binary import open_runner
from model.config import ConfigError, read_config
from model.plan_command import configured
from model.published import convert
from model.published.licences import all_of, licence_of
from model.published.locate import Located, locate
from model.published.model_id import Source
from model.published.presets import PRESETS, by_name
from model.weights import FILES, read_tensors
from tests.fixtures.checkpoints import lora_tensors, save, wan_tensors
from tests.fixtures.fake_hub import FakeHub
from tests.fixtures.folders import ROLLOUT, make_folder
from tests.fixtures.shards import split

WHOLE, SHARDED, ALONE, BARE, REST, BASE = (f"small/{n}" for n in ("whole", "sharded", "alone", "bare", "rest", "base"))
SELF_FORCING = "gueraf/Self-Forcing-diffusers"  # of the presets, the one whose transformer is at the root
QUICK = Limits(ask=3.0, download=20.0, stall=1.5)  # where a test waits for one of them to pass
UNWANTED = ("README.md", "transformer/diffusion_pytorch_model.bin", "vae/model.pt", "text_encoder/model.onnx",
            "transformer/diffusion_pytorch_model.fp16.safetensors", "scheduler/scheduler_config.json")  # fmt: skip
JUNK = dict.fromkeys(UNWANTED, b"not to be fetched")


@pytest.fixture(scope="module")
def server() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        yield hub


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "small")


def content(folder: Path, *prefixes: str) -> dict[str, bytes]:
    files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    return {name: data for name, data in files.items() if name.startswith(prefixes or ("",))}


@pytest.fixture
def hub(server: FakeHub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """With a small repository of every layout, and an empty cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    rest = content(folder, "vae/", "text_encoder/", "tokenizer/")
    transformer = content(folder, "transformer/")
    root = {name.removeprefix("transformer/"): data for name, data in transformer.items()}
    sharded = shutil.copytree(folder, tmp_path / "sharded")
    for part in FILES:
        split(sharded, part)
    offered = {
        WHOLE: content(folder) | JUNK,
        SHARDED: content(sharded) | JUNK,
        ALONE: transformer,
        BARE: root,
        SELF_FORCING: root,
        REST: rest,
        BASE: rest | {"transformer/config.json": b"{}", "transformer/diffusion_pytorch_model.safetensors": b"other"},
    }
    server.reset(*offered)
    for name, files in offered.items():
        server.repos.put(name, files)
    server.log.clear()
    return server


def find(hub: FakeHub, tmp_path: Path, text: str, **settings) -> Located:
    base = settings.pop("base", Source(repo=REST))
    return locate(text, base=base, cache=tmp_path / "cache", endpoint=hub.url, **settings)


def same_weights(ours: Path, theirs: Path) -> bool:
    for part in FILES:
        a, b = (read_tensors(place, part, torch.float32) for place in (ours, theirs))
        if set(a) != set(b) or not all(torch.equal(a[name], b[name]) for name in a):
            return False
    return True


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        (WHOLE, [WHOLE]),
        (SHARDED, [SHARDED]),
        (ALONE, [ALONE, REST]),
        (f"{ALONE}+{SHARDED}", [ALONE, SHARDED]),
        (BARE, [BARE, REST]),
        ("self-forcing", [SELF_FORCING, REST]),
    ],
)
def test_every_layout_loads(hub: FakeHub, folder: Path, tmp_path: Path, text: str, origins: list[str]) -> None:
    told: list[tuple[int, int]] = []
    found = find(hub, tmp_path, text, progress=lambda *done: told.append(done))
    assert same_weights(found.folder, folder)
    assert open_runner(found.folder, "eager", "float32").mode == "eager"
    tips = {name: hub.repos.get(name).commits[-1] for name in origins}
    assert set(found.sources.values()) == {f"{name}@{tip}" for name, tip in tips.items()}
    assert json.loads((found.folder / "sources.json").read_text())["sources"] == found.sources
    assert [licence.source for licence in found.licences] == origins  # the transformer's first
    fetched = [request.line for request in hub.log if "/resolve/" in request.line]
    assert fetched
    assert not [line for line in fetched if any(line.endswith(name) for name in JUNK)]
    assert told == sorted(told)
    weights = [file for part in FILES for file in (found.folder / part).glob("*.safetensors")]
    assert told[-1] == (sum(file.stat().st_size for file in weights),) * 2


def test_a_second_start_asks_for_nothing_but_the_commit(hub: FakeHub, tmp_path: Path) -> None:
    first = find(hub, tmp_path, WHOLE)
    hub.log.clear()
    assert find(hub, tmp_path, WHOLE) == first
    assert [request.line for request in hub.log] == [f"GET /api/models/{WHOLE}"]
    hub.log.clear()
    assert find(hub, tmp_path, first.sources["vae"]).folder == first.folder
    assert hub.log == []
    away = locate(WHOLE, cache=tmp_path / "cache", endpoint="http://127.0.0.1:9")
    assert away.folder == first.folder


def test_offline_what_is_in_the_cache_serves(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = find(hub, tmp_path, ALONE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.log.clear()
    assert find(hub, tmp_path, ALONE) == first
    with pytest.raises(CompileCacheError, match="HF_HUB_OFFLINE is set, and small/whole is not complete in this"):
        find(hub, tmp_path, WHOLE)
    assert hub.log == []


@pytest.mark.parametrize("away", ["offline", "unreachable"])
def test_without_the_hub_what_another_program_downloaded_serves(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    """It may keep no list of the repository's files, which this client then has to do without."""
    first = find(hub, tmp_path, WHOLE)
    for trees in (tmp_path / "hf").rglob("trees"):
        shutil.rmtree(trees)
    monkeypatch.setattr(_tree_cache, "_IN_MEMORY_TREE_CACHE", {})
    if away == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    else:
        hub = SimpleNamespace(url="http://127.0.0.1:9")
    assert find(hub, tmp_path, WHOLE) == first
    (first.folder / FILES["vae"]).unlink()
    words = f"no {FILES['vae']}; the Hub is not asked or cannot be reached, and of small/whole only what is in this"
    with pytest.raises(CompileCacheError, match=words):
        find(hub, tmp_path, WHOLE)


@pytest.mark.parametrize("text", [SHARDED, ALONE])
def test_a_plan_needs_the_settings_only(
    hub: FakeHub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("model.published.locate.locate", lambda name, **settings: find(hub, tmp_path, name, **settings))
    config = configured(text, None)
    assert (config.transformer, config.vae) == (read_config(folder).transformer, read_config(folder).vae)
    assert hub.count("GET /blob/") == 0
    assert same_weights(find(hub, tmp_path, text).folder, folder)  # which can come later


def test_a_pinned_commit_stays_when_the_repository_moves_on(hub: FakeHub, folder: Path, tmp_path: Path) -> None:
    first = find(hub, tmp_path, WHOLE)
    other = make_folder(tmp_path / "other", seed=1)
    hub.repos.put(WHOLE, content(other))
    assert same_weights(find(hub, tmp_path, first.sources["vae"]).folder, folder)
    moved = find(hub, tmp_path, WHOLE)
    assert same_weights(moved.folder, other)
    assert not same_weights(moved.folder, folder)


def test_a_file_that_was_cut_in_the_cache_is_fetched_again(hub: FakeHub, folder: Path, tmp_path: Path) -> None:
    found = find(hub, tmp_path, WHOLE)
    file = (found.folder / FILES["vae"]).resolve()
    file.write_bytes(file.read_bytes()[:-1])
    hub.log.clear()
    assert same_weights(find(hub, tmp_path, WHOLE).folder, folder)
    assert hub.count("GET /blob/") == 1


def test_sampling_and_licence_are_the_presets(hub: FakeHub, folder: Path, tmp_path: Path) -> None:
    rollout = read_config(find(hub, tmp_path, "self-forcing").folder).rollout
    assert (rollout.title, rollout.window_blocks, rollout.shift) == ("Self-Forcing (Wan 2.1 1.3B)", 7, 5.0)
    assert "non-commercial" in rollout.licence
    assert REST in rollout.licence
    assert read_config(find(hub, tmp_path, BARE).folder).rollout.licence.startswith("not known; check the card")
    whole = read_config(find(hub, tmp_path, WHOLE).folder).rollout  # its own onegraph.json
    own = "not known; check the card; its onegraph.json says “Apache-2.0”"
    assert whole == replace(read_config(folder).rollout, licence=own)


def test_what_a_file_says_of_its_licence_does_not_replace_what_we_know(
    hub: FakeHub, folder: Path, tmp_path: Path
) -> None:
    def said(text: str) -> str:
        return read_config(find(hub, tmp_path, text).folder).rollout.licence

    free = json.dumps(ROLLOUT | {"licence": "free for all " * 30}).encode()
    hub.repos.put(SELF_FORCING, {"onegraph.json": free})
    ours, quoted = by_name("self-forcing").licence, "its onegraph.json says “free for all"
    rest = f"; {REST}: not known; check the card"
    assert said(SELF_FORCING).startswith(f"{ours}; {quoted}")
    assert said(SELF_FORCING).endswith(rest)
    many = [licence_of(f"{index}/{'x' * 90}") for index in range(3)] + [licence_of(SELF_FORCING, "free " * 90)]
    assert "non-commercial" in all_of(many, many[0].source, "")
    own = tmp_path / "own"
    shutil.copytree(folder / "transformer", own / "transformer")
    (own / "onegraph.json").write_text(json.dumps(ROLLOUT | {"licence": "MIT"}))
    assert said(str(own)) == f"MIT{rest}"
    hub.repos.put(SELF_FORCING, {"onegraph.json": json.dumps(ROLLOUT | {"licence": "free " * 101}).encode()})
    with pytest.raises(ConfigError, match="'licence' must be one printable line of at most 500"):
        said(SELF_FORCING)


@pytest.mark.parametrize("adapted", [False, True])
def test_converted_checkpoints_load_with_the_base(hub: FakeHub, folder: Path, tmp_path: Path, adapted: bool) -> None:
    tensors = wan_tensors(folder)
    save(tmp_path / "in.pt", generator_ema=tensors)
    torch.save({"generator_lora": lora_tensors(tensors)}, tmp_path / "lora.pt")
    made = convert.convert(tmp_path / "in.pt", tmp_path / "out", lora=tmp_path / "lora.pt" if adapted else None,
                           model=folder, preset=by_name("longlive"), dtype=torch.float32)  # fmt: skip
    found = find(hub, tmp_path, str(tmp_path / "out"))
    assert open_runner(found.folder, "eager", "float32").mode == "eager"
    rollout = read_config(found.folder).rollout
    assert (rollout.window_blocks, rollout.sink_blocks, rollout.title[:8]) == (3, 1, "LongLive")
    written = load_file(made.folder / "diffusion_pytorch_model.safetensors")
    read = read_tensors(found.folder, "transformer", torch.float32)
    assert all(torch.equal(read[name], tensor) for name, tensor in written.items())


def test_a_whole_folder_is_taken_as_it_is(hub: FakeHub, folder: Path, tmp_path: Path) -> None:
    plus = shutil.copytree(folder, tmp_path / "a+b")
    for place in (folder, plus):
        assert find(hub, tmp_path, str(place)) == Located(place)
    assert hub.log == []


def gated(hub: FakeHub) -> None:
    """As the Hub has it: the list of files can be seen by everybody, the files cannot."""
    hub.fail(f"/{WHOLE}/resolve/", status=401, headers={"X-Error-Code": "GatedRepo"})


def without(hub: FakeHub, repo: str, *names: str) -> None:
    hub.repos.put(repo, dict.fromkeys(names))


def retyped(hub: FakeHub, repo: str, file: str, **fields: object) -> None:
    tree = hub.repos.get(repo).trees[hub.repos.get(repo).commits[-1]]
    hub.repos.put(repo, {file: json.dumps(json.loads(tree[file].data) | fields).encode()})


def pickled(hub: FakeHub) -> None:
    hub.repos.put(WHOLE, {"transformer/diffusion_pytorch_model.safetensors": None})


SECOND = "transformer/diffusion_pytorch_model-00002-of-00003.safetensors"
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
ODD = [
    (3, "its text_encoder is 3, not UMT5EncoderModel"),
    ({"a": 1}, "its text_encoder is {'a': 1}, not"),
    ([[], None], r"its text_encoder is \[\], None, not"),
    ("T5EncoderModel", "its text_encoder is T5EncoderModel, not"),
]
WRONG = [  # what no folder may say, wherever it is
    ("onegraph.json", {"steps": 9}, "onegraph.json: field 'steps' must be from 1 to 8, not 9"),
    ("onegraph.json", {"steps": 0}, "'steps' must be"),
    ("onegraph.json", {"sizes": [[64, 72]]}, "onegraph.json: The size 64x72 cannot be drawn"),
    ("onegraph.json", {"sizes": [[64, 64], [4096, 64]]}, "The size 4096x64 cannot be drawn"),
    ("onegraph.json", {"sizes": [[64]]}, "each of 'sizes' must be a height and a width"),
    ("onegraph.json", {"sizes": []}, "'sizes' must be"),
    ("onegraph.json", {"block_frames": 0}, "'block_frames' must be from 1"),
    ("onegraph.json", {"window_blocks": 0}, "'window_blocks' must be from 1"),
    ("onegraph.json", {"sink_blocks": -1}, "'sink_blocks' must be from 0"),
    ("onegraph.json", {"skip_below": -0.1}, "'skip_below' must be from 0 to 1000.0, not -0.1"),
    ("onegraph.json", {"max_attempts": 101}, "'max_attempts' must be from 0 to 100"),
    ("onegraph.json", {"text_length": 0}, "'text_length' must be from 1"),
    ("onegraph.json", {"context_noise": float("nan")}, "'context_noise' must be from 0"),
    ("onegraph.json", {"shift": float("inf")}, "'shift' must be a number above 0"),
    ("onegraph.json", {"title": "two\nlines"}, "'title' must be one printable line"),
    ("onegraph.json", {"knows": {"colour": "red"}}, "onegraph.json: field 'knows.colour' must be a list"),
    ("transformer/config.json", {"num_layers": 10**9}, "'num_layers' must be from 1 to 1000"),
    ("vae/config.json", {"latents_mean": [0.0]}, "'latents_mean' and 'latents_std' must have 16 numbers each"),
    ("text_encoder/config.json", {"d_kv": 0}, "text_encoder/config.json: field 'd_kv' must be from 1"),
]
MADE = [  # what only making the parts shows
    (
        "text_encoder/config.json",
        {"feed_forward_proj": "gated-nothing"},
        "text_encoder/config.json is no configuration",
    ),
    ("text_encoder/config.json", {"vocab_size": 8}, "tokens, but the text encoder's vocabulary is 8"),
    (
        "transformer/config.json",
        {"num_attention_heads": 2**24, "attention_head_dim": 4096},
        "can be made: RuntimeError",
    ),
]


@pytest.mark.parametrize(
    ("text", "spoil", "words"),
    [
        ("nobody/nothing", lambda hub: None, "the Hub has no model nobody/nothing, or it is private and HF_TOKEN"),
        (WHOLE, gated, "small/whole is gated: set HF_TOKEN"),
        (f"{WHOLE}@{'0' * 40}", lambda hub: None, "small/whole has no such commit"),
        (f"{WHOLE}@main", lambda hub: None, "names no commit: after the @ come its 40 hex digits"),
        ("no-such-folder", lambda hub: None, "is no model: .* self-forcing, .* there is no such folder"),
        ("./small/whole", lambda hub: None, "there is no such folder"),
        ("", lambda hub: None, "'' is no model"),
        (SHARDED, lambda hub: without(hub, SHARDED, SECOND), f"not complete: {SECOND} missing, of 3 files"),
        (ALONE, lambda hub: without(hub, ALONE, WEIGHTS), f"of its transformer it has no {WEIGHTS}"),
        (WHOLE, pickled, r"only pickles \(transformer/diffusion_pytorch_model.bin\)"),
        (BARE, lambda hub: hub.repos.put(BARE, {"diffusion_pytorch_model.safetensors": None, "ckpt/a.pt": b"x"}),
         r"only pickles \(ckpt/a.pt\), which can run code and are not read; see python -m model convert"),
        ("longlive", lambda hub: None, "convert models/longlive_base.pt FOLDER --lora models/lora.pt --preset"),
        (f"{REST}+{BASE}", lambda hub: None, "small/base@.*: transformer/config.json: field 'num_att"),
        (WHOLE, lambda hub: retyped(hub, WHOLE, "transformer/config.json", _class_name="CogVideoXTransformer3DModel"),
         "another architecture: its transformer is CogVideoXTransformer3DModel, not WanTransformer3DModel"),
        (WHOLE, lambda hub: retyped(hub, WHOLE, "transformer/config.json", image_dim=1280), "that takes images"),
        (WHOLE, lambda hub: retyped(hub, WHOLE, "text_encoder/config.json", architectures=["T5EncoderModel"]),
         "its text_encoder is T5EncoderModel, not UMT5EncoderModel"),
        (WHOLE, lambda hub: retyped(hub, WHOLE, "vae/config.json", z_dim=48), "do not fit each other: 16 channels in"),
        (WHOLE, lambda hub: retyped(hub, WHOLE, "transformer/config.json", text_dim=64), "64 text channels in"),
        (WHOLE, lambda hub: retyped(hub, WHOLE, "transformer/config.json", num_layers="two"), "'num_layers' must be"),
        (WHOLE, lambda hub: hub.repos.put(WHOLE, {"vae/config.json": None, "vae/config.json.index.json": b"{}"}),
         "of its vae it has no vae/config.json"),
        *[(WHOLE, lambda hub, value=value: retyped(hub, WHOLE, "text_encoder/config.json", architectures=value), words)
          for value, words in ODD],
        *[(WHOLE, lambda hub, file=file, fields=fields: retyped(hub, WHOLE, file, **fields), words)
          for file, fields, words in WRONG + MADE],
        (WHOLE, lambda hub: hub.repos.put(WHOLE, {"tokenizer/tokenizer.json": b"{}"}), "be read as a tokenizer"),
        (WHOLE, lambda hub: hub.fail("GET /blob/", cut=100), "the download of small/whole broke off"),
        (WHOLE, lambda hub: hub.fail("GET /blob/", silent=True), "broke off .*nothing arrived for 1.5 s.*; perhaps"),
        (WHOLE, lambda hub: hub.fail("GET /api/models", silent=True), "no answer within 3 s"),
        (WHOLE, lambda hub: hub.fail("GET /api/models", status=403), "the Hub answered 403 for small/whole"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence(hub: FakeHub, tmp_path: Path, text: str, spoil, words: str) -> None:
    spoil(hub)
    with pytest.raises((CompileCacheError, ConfigError), match=words) as caught:
        find(hub, tmp_path, text, limits=QUICK)
    assert "\n" not in str(caught.value)
    if "broke off" not in words:  # all else is known before any weights are fetched
        assert hub.count("GET /blob/") == 0


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "GatedRepo", "small/whole is gated: the token's account must accept its conditions"),
        (401, "", "the Hub has no model small/whole, or the token is not valid or may not see it"),
    ],
)
def test_with_a_token_another_step_is_advised(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, code: str, words: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.fail(f"/{WHOLE}/resolve/", status=status, headers={"X-Error-Code": code} if code else {})
    with pytest.raises(CompileCacheError, match=words) as caught:
        find(hub, tmp_path, WHOLE)
    assert "hf_secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / FILES["vae"]).unlink(), f"of its vae it has no {FILES['vae']}"),
        (lambda folder: (folder / "text_encoder" / "config.json").unlink(), "it has no text_encoder/config.json"),
        (lambda folder: (folder / FILES["transformer"]).rename(folder / "transformer" / "x.bin"), "only pickles"),
        (lambda folder: shutil.rmtree(folder / "transformer"), "has no transformer in diffusers layout"),
    ],
)
def test_a_folder_that_lacks_something_is_told(hub: FakeHub, folder: Path, tmp_path: Path, spoil, words: str) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "onegraph.json").unlink()
    assert same_weights(find(hub, tmp_path, str(copy)).folder, folder)
    spoil(copy)
    with pytest.raises(CompileCacheError, match=words):
        find(hub, tmp_path, str(copy))
    assert hub.count("GET /blob/") == 0


@pytest.mark.parametrize(("file", "fields", "words"), [*WRONG, ("vae/config.json", {"z_dim": 48}, "16 channels in")])
def test_a_whole_folder_is_looked_at_too(folder: Path, tmp_path: Path, file: str, fields: dict, words: str) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / file).write_text(json.dumps(json.loads((copy / file).read_text()) | fields))
    with pytest.raises((CompileCacheError, ConfigError), match=words):
        locate(copy)


def test_settings_too_large_are_not_fetched(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.published.locate.MAX_SETTINGS", 64 * 1024)
    hub.repos.put(WHOLE, {"vae/config.json": b" " * 65 * 1024})
    with pytest.raises(CompileCacheError, match=r"vae/config.json has 65.0 KB; a file of settings may have 64.0 KB"):
        find(hub, tmp_path, WHOLE)
    assert not [request for request in hub.log if "/vae/config.json" in request.line]


def test_the_base_models_own_transformer_is_not_taken(hub: FakeHub, tmp_path: Path) -> None:
    wan = by_name("wan").repo
    hub.repos.create(wan)
    commit = hub.repos.put(wan, content(find(hub, tmp_path, WHOLE).folder))
    with pytest.raises(CompileCacheError, match="is not causal; name one that is, as self-forcing"):
        find(hub, tmp_path, f"{wan}@{commit}")


@pytest.mark.parametrize("text", [WHOLE, ALONE])
def test_a_disk_too_small_is_said_before_the_weights(
    hub: FakeHub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    free = sum((folder / file).stat().st_size for file in FILES.values()) - 1  # enough for each of two repositories
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(1 << 30, 1 << 30, free))
    with pytest.raises(CompileCacheError, match=r"the disk is too small for the model: .* are free there"):
        find(hub, tmp_path, text)
    assert hub.count("GET /blob/") == 0


def test_presets_are_sound_and_in_the_readme() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    assert len({preset.name for preset in PRESETS}) == len({preset.repo for preset in PRESETS}) == len(PRESETS)
    for preset in PRESETS:
        assert configured("", preset.name).rollout.title == preset.title
        assert f"| `{preset.name}` | {preset.repo} | {preset.licence} |" in readme
        assert preset.non_commercial is not False or preset.licence == "Apache-2.0"
