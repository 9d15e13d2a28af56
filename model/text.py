"""From what people type to token ids: cleaning and the tokenizer. The text encoder itself is in the graph.

Cleaning gives what Wan's gives (ftfy, HTML escapes undone twice, white space collapsed) without needing ftfy. Of ftfy
only the repair of text decoded with the wrong encoding ("cafÃ©") is left out.
"""

from __future__ import annotations

import html
import re
import unicodedata
from pathlib import Path

import torch
from torch import Tensor

from .config import ConfigError

PAD_ID = 0

TERMINAL_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
LIGATURES = "ĲĳŉǱǲǳǄǅǆǇǈǉǊǋǌﬀﬁﬂﬃﬄﬆ"
WIDE_OR_NARROW = [0x3000, *range(0xFF01, 0xFFF0)]  # CJK's own widths of Latin letters, kana and signs
CONTROL = [*range(0x09), 0x0B, *range(0x0E, 0x20), 0x7F, *range(0x206A, 0x2070), 0xFEFF, *range(0xFFF9, 0xFFFD)]


def _replacements() -> dict[int, str | None]:
    """Character -> what stands for it; None for nothing."""
    table: dict[int, str | None] = {ord(c): unicodedata.normalize("NFKC", c) for c in LIGATURES}
    table |= {code: unicodedata.normalize("NFKC", chr(code)) for code in WIDE_OR_NARROW}
    table[ord("ﬅ")] = "ſt"
    table |= dict.fromkeys(map(ord, "\u02bc\u2018\u2019\u201a\u201b"), "'")
    table |= dict.fromkeys(map(ord, "\u201c\u201d\u201e\u201f"), '"')
    for code in range(0x80, 0xA0):  # controls that nobody types: bytes of Windows' encoding
        table[code] = bytes([code]).decode("cp1252", "ignore") or None
    return table | dict.fromkeys(CONTROL)


REPLACEMENTS = _replacements()


def clean(prompt: str) -> str:
    """A prompt as Wan's text encoder was trained to see it: plain quotes and letters, no escapes, single spaces."""
    prompt = html.unescape(prompt) if "<" not in prompt else prompt
    prompt = TERMINAL_ESCAPE.sub("", prompt).translate(REPLACEMENTS)
    # Halves of a character become the whole one; a half alone becomes the sign for what cannot be read.
    prompt = prompt.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    prompt = html.unescape(html.unescape(unicodedata.normalize("NFC", prompt)))
    return " ".join(prompt.split())


class PromptTokenizer:
    """A folder's `tokenizer/tokenizer.json`, padded or cut to a fixed length; the end of text survives the cut.

    Read by the `tokenizers` library itself, which transformers builds on: importing transformers takes seconds, and
    a process that runs the compiled graph needs nothing else of it. Raises ConfigError where the file is unusable, or
    knows more tokens than the text encoder's `vocabulary`. The ids in a file may be any numbers, so `encode` looks at
    each: one out of range would end a compiled process.
    """

    def __init__(self, folder: Path, length: int, vocabulary: int) -> None:
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel

        path = folder / "tokenizer" / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise ConfigError(f"{path} cannot be read as a tokenizer: {error}") from None
        known = self._tokenizer.get_vocab_size()
        if known > vocabulary:
            raise ConfigError(f"{path} has {known} tokens, but the text encoder's vocabulary is {vocabulary}")
        self._tokenizer.no_padding()
        self._path, self.length, self._vocabulary = path, length, vocabulary
        model = self._tokenizer.model
        self._unknown = model.unk_token if isinstance(model, WordLevel) else None  # the others spell what they lack
        try:
            self._tokenizer.enable_truncation(length)
        except Exception as error:
            raise ConfigError(f"{path} cannot cut a prompt to {length} tokens: {error}") from None
        self.encode("a")  # so that what it adds to every prompt is known to be sound

    def encode(self, prompt: str) -> tuple[Tensor, Tensor]:
        """A cleaned prompt -> token ids and mask, int64 [1, length]. Raises ConfigError where the file gives ids that
        the text encoder has not, or cannot be used at all."""
        try:
            ids = self._tokenizer.encode(prompt).ids
        except Exception as error:
            raise ConfigError(f"{self._path} cannot be used as a tokenizer: {error}") from None
        highest = max(ids, default=0)
        if highest >= self._vocabulary:
            known = f"the text encoder's vocabulary is {self._vocabulary}"
            raise ConfigError(f"{self._path} gives a word the id {highest}, but {known}")
        if len(ids) > self.length:
            raise ConfigError(f"{self._path} does not cut prompts to {self.length} tokens")
        padding = self.length - len(ids)
        mask = [1] * len(ids) + [0] * padding
        return torch.tensor([ids + [PAD_ID] * padding]), torch.tensor([mask])

    def words(self, prompt: str) -> tuple[list[str], list[str]]:
        """Of a cleaned prompt, as far as it is read: the words that the vocabulary has, as it has them, and those that
        it has not, as they were typed, each once. Nothing is unknown to a tokenizer of pieces of words."""
        read = self._tokenizer.encode(prompt)
        own = zip(read.tokens, read.offsets, read.special_tokens_mask, strict=True)
        tokens = [(name, place) for name, place, added in own if not added]
        unknown = [_around(prompt, *place) for name, place in tokens if name == self._unknown]
        known = [name for name, _ in tokens if name != self._unknown]
        return known, list({word.casefold(): word for word in unknown if word}.values())


def _around(prompt: str, begin: int, end: int) -> str:
    """The whole word of which that is a part (the don of don't), without signs before and after it."""
    before, after = re.search(r"\S*$", prompt[:begin])[0], re.match(r"\S*", prompt[end:])[0]
    return re.sub(r"^\W+|\W+$", "", before + prompt[begin:end] + after)
