"""From what people type to token ids: cleaning and the tokenizer. The text encoder itself is in the graph."""

from __future__ import annotations

import html
import unicodedata
from pathlib import Path

import torch
from torch import Tensor

from .config import ConfigError

PAD_ID = 0


def clean(prompt: str) -> str:
    """Undo HTML escapes (twice, as Wan does), normalise Unicode, drop control characters, collapse white space."""
    prompt = unicodedata.normalize("NFC", html.unescape(html.unescape(prompt)))
    spaced = (" " if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") else c for c in prompt)
    return " ".join("".join(spaced).split())


class PromptTokenizer:
    """A folder's `tokenizer/tokenizer.json`, padded or cut to a fixed length.

    Read by the `tokenizers` library itself, which transformers builds on: importing transformers takes seconds, and
    a process that runs the compiled graph needs nothing else of it. Raises ConfigError where the file is unusable, or
    knows more tokens than the text encoder's `vocabulary`: an id out of range would end a compiled process.
    """

    def __init__(self, folder: Path, length: int, vocabulary: int) -> None:
        from tokenizers import Tokenizer

        path = folder / "tokenizer" / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise ConfigError(f"{path} cannot be read as a tokenizer: {error}") from None
        known = self._tokenizer.get_vocab_size()
        if known > vocabulary:
            raise ConfigError(f"{path} has {known} tokens, but the text encoder's vocabulary is {vocabulary}")
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.length = length

    def encode(self, prompt: str) -> tuple[Tensor, Tensor]:
        """A cleaned prompt -> token ids and mask, int64 [1, length]."""
        ids = self._tokenizer.encode(prompt).ids[: self.length]
        padding = self.length - len(ids)
        mask = [1] * len(ids) + [0] * padding
        return torch.tensor([ids + [PAD_ID] * padding]), torch.tensor([mask])
