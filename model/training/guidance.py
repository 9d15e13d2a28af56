"""Guidance towards the prompt that is learned into the weights, so that sampling needs one forward per step.

Where nothing else says what the object is, the target moves away from what the model would predict without the word
for the shape: flow + w·(flow(prompt) − flow(prompt without it)), no gradient through the difference. Where learned, it
comes to classifier-free guidance of scale 1 / (1 − w). After "Diffusion Models without Classifier-free Guidance" (Tang
et al. 2025). Knows nothing of layouts and losses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from model.training import captions

STRENGTH = 0.35  # w: a scale of about 1.5
HIDDEN = 0.1  # share of the captions that training shows without their shape, so that it knows what to move away from


@dataclass(frozen=True)
class Prompt:
    """Embeddings [B, L, D] of captions, and of the same captions without their shape."""

    text: Tensor
    blind: Tensor


def hide_shape(tokenizer: Tokenizer, ids: Tensor) -> Tensor:
    """Token ids with the words for shapes made unknown ones."""
    words = {word for options in captions.SHAPE_WORDS.values() for option in options for word in option.split()}
    shapes = torch.tensor([tokenizer.token_to_id(word) for word in sorted(words)])
    return ids.masked_fill(torch.isin(ids, shapes), tokenizer.token_to_id(captions.UNK))


def hide_some(ids: Tensor, hidden: Tensor, rng: np.random.Generator) -> Tensor:
    """Token ids [B, L], of a few captions those without the shape."""
    return torch.where(torch.from_numpy(rng.random(len(ids)) < HIDDEN)[:, None], hidden, ids)


def pull(flow: Tensor, blind: Tensor) -> Tensor:
    """What is added to the target, float32: towards the prompt, away from the flow without the shape."""
    return STRENGTH * (flow.detach().float() - blind.float())
