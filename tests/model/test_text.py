"""The text path against diffusers' Wan pipeline: cleaning, tokens, padding to 512, embeddings zeroed past the prompt.

The text encoder is small and random; the tokenizer is a small file in the layout of UMT5's.
"""

import json
from pathlib import Path

import pytest
import torch
from diffusers import WanPipeline
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram, WordLevel
from torch import nn
from transformers import AutoTokenizer, UMT5Config, UMT5EncoderModel

from model.config import ConfigError
from model.generator import Condition
from model.text import PromptTokenizer, clean

LENGTH = 512
SENTINELS = 4  # UMT5 has 300
TEXT = dict(d_model=24, d_kv=6, num_heads=4, d_ff=40, num_layers=3, vocab_size=128, feed_forward_proj="gated-gelu")
WORDS = ["▁a", "▁red", "▁ball", "▁in", "▁the", "▁snow", "ing", "▁move", "s", "球", "赤い", "é"]


def write_tokenizer(folder: Path) -> None:
    """tokenizer/ as the published models have it: a Unigram model, "▁" for spaces, "</s>" after every text."""
    special = ["<pad>", "</s>", "<unk>"]
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz<>&\"'.,!"]
    pieces = [(word, -3.0 - 0.01 * index) for index, word in enumerate(WORDS)]
    pieces += [(letter, -8.0 - 0.01 * index) for index, letter in enumerate(letters)]
    sentinels = [f"<extra_id_{index}>" for index in range(SENTINELS)]
    vocabulary = [(token, 0.0) for token in special] + pieces + [(token, 0.0) for token in reversed(sentinels)]
    tokenizer = Tokenizer(Unigram(vocabulary, unk_id=2))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in [*special, *sentinels]])
    (folder / "tokenizer").mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    config = dict(tokenizer_class="T5Tokenizer", eos_token="</s>", unk_token="<unk>", pad_token="<pad>",
                  extra_ids=SENTINELS, additional_special_tokens=sentinels, model_max_length=LENGTH)  # fmt: skip
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(config))


class Embeddings(nn.Module):
    """In the transformer's place: hands on what the text path gives it."""

    def cross_kv(self, text: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(text, text)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text") / "model"
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def upstream(folder: Path) -> WanPipeline:
    torch.manual_seed(0)
    encoder = UMT5EncoderModel(UMT5Config(**TEXT)).eval()
    for name, parameter in encoder.named_parameters():  # drawn for a network at work, not for the start of a training
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
        elif "shared" not in name:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    return WanPipeline(tokenizer=tokenizer, text_encoder=encoder, vae=None, scheduler=None)


PROMPTS = {
    "one word": ("ball", 2),
    "a sentence": ("a red ball moves in the snow, moving!", None),
    "white space": ("  a \t red\n\n ball\u3000in\xa0the snow ", None),
    "escapes": ("a &amp;lt;red&amp;gt; ball &quot;s&quot;", None),
    "other scripts": ("赤い球 café 🙂", None),
    "special tokens typed": ("a </s> ball <extra_id_1> <pad> <unk>", None),
    "as long as it may be": ("ball " * (LENGTH - 1), LENGTH),
    "longer": ("a red ball in the snow " * 200, LENGTH),
}


@pytest.mark.parametrize("name", PROMPTS)
@torch.no_grad()
def test_embeddings_equal_those_of_diffusers(folder: Path, upstream: WanPipeline, name: str) -> None:
    prompt, length = PROMPTS[name]
    expected, _ = upstream.encode_prompt(prompt, do_classifier_free_guidance=False, max_sequence_length=LENGTH,
                                         device=torch.device("cpu"))  # fmt: skip
    ids, mask = PromptTokenizer(folder, LENGTH, TEXT["vocab_size"]).encode(clean(prompt))
    tokens = int(mask.sum())
    embeddings, _ = Condition(upstream.text_encoder, Embeddings())(ids, mask)
    assert embeddings.shape == expected.shape == (1, LENGTH, TEXT["d_model"])
    assert ((embeddings - expected).abs().max() / expected.abs().max()).item() <= 1e-5
    assert not embeddings[:, tokens:].any()
    assert embeddings[:, :tokens].abs().sum(-1).all()
    assert ids[0, tokens - 1] == 1  # the end of text, also where the prompt was cut
    assert length is None or tokens == length


# What diffusers' prompt_clean gives with ftfy 6.3.1 installed.
CLEANED = {
    "a “red” ball’s ‚bounce‛ „x‟": 'a "red" ball\'s \'bounce\' "x"',
    "a ball – red — big…": "a ball – red — big…",
    "a ﬁne ﬂower, ﬅ, Ǆ": "a fine flower, ſt, DŽ",
    "ＬＯＵＤ　ball １ ﾎﾞｰﾙ": "LOUD ball 1 ボール",
    "① ² ™ ㎏": "① ² ™ ㎏",
    "e\u0301": "é",
    "a\x00red\x07ball\x7f": "aredball",
    "a\x85red\x9bball": "a…red›ball",
    "\x1b[1;31mred\x1b[0m": "red",
    "a\x0bb\x0cc\x1cd\te\r\nf": "ab cd e f",
    "a\u2028b\u2029c": "a b c",
    "\ufeffa ball\ufff9": "a ball",
    "a\u200bball \u202e\xad": "a\u200bball \u202e\xad",
    "\ud800 ball \ud83d\ude42": "\ufffd ball 🙂",
    "a <b> &lt; c &amp;amp;lt;": "a <b> < c &lt;",
    "a &amp;amp;lt; c": "a < c",
    "&ldquo;red&rdquo;": '"red"',
    "كرة حمراء": "كرة حمراء",
}


@pytest.mark.parametrize("typed", CLEANED)
def test_cleaning_equals_upstreams(typed: str) -> None:
    assert clean(typed) == CLEANED[typed]
    assert clean(CLEANED[typed]) == CLEANED[typed] or "&" in typed


def test_mojibake_is_left_as_it_is() -> None:
    """The one thing that ftfy does and we do not; it would give "café"."""
    assert clean("cafÃ©") == "cafÃ©"


def test_a_tokenizer_that_cannot_be_read_or_knows_too_much_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read as a tokenizer"):
        PromptTokenizer(tmp_path, LENGTH, 128)
    with pytest.raises(ConfigError, match="tokens, but the text encoder's vocabulary is 20"):
        PromptTokenizer(folder, LENGTH, 20)


FAR = 999_999


def words_tokenizer(folder: Path, words: dict[str, int], added: int | None = None) -> Path:
    tokenizer = Tokenizer(WordLevel({"<unk>": 0} | words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if added is not None:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", added)])
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    return folder


def test_ids_that_the_text_encoder_has_not_are_refused(tmp_path: Path) -> None:
    """A tokenizer may be small and give any numbers; some come with every prompt, others with a word."""
    for folder in (tmp_path / "word", tmp_path / "every"):
        folder.mkdir()
    tokenizer = PromptTokenizer(words_tokenizer(tmp_path / "word", {"b": FAR, "c": 127}), 8, 128)
    assert tokenizer.encode("c")[0].tolist() == [[127, *[0] * 7]]
    with pytest.raises(ConfigError, match=f"gives a word the id {FAR}, but the text encoder's vocabulary is 128"):
        tokenizer.encode("c b")
    with pytest.raises(ConfigError, match=f"the id {FAR}, but"):
        PromptTokenizer(words_tokenizer(tmp_path / "every", {}, FAR), 8, 128)
