"""Words for scenes: the canonical caption, free wordings of it, and the word-level tokenizer of both.

Knows nothing of pixels. A word outside the vocabulary becomes the unknown token, which training shows often enough
(filler words are dropped to it) that it does no harm.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase, Replace, Sequence
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from model.training.world import Scene

TEXT_LENGTH = 32
PAD, EOS, UNK = "<pad>", "</s>", "<unk>"

# Per value: the canonical wording first, then others that mean the same.
COLOUR_WORDS: dict[str, tuple[str, ...]] = {
    "red": ("red", "crimson", "scarlet", "ruby"),
    "orange": ("orange", "tangerine"),
    "yellow": ("yellow", "golden", "gold", "lemon"),
    "green": ("green", "emerald", "lime"),
    "blue": ("blue", "azure", "navy"),
    "purple": ("purple", "violet", "lilac"),
    "pink": ("pink", "rosy", "magenta"),
    "white": ("white", "pale", "ivory"),
}
SHAPE_WORDS: dict[str, tuple[str, ...]] = {
    "circle": ("circle", "ball", "disc", "dot", "disk", "sphere"),
    "square": ("square", "box", "block", "cube"),
    "triangle": ("triangle", "pyramid"),
    "star": ("star",),
    "ring": ("ring", "donut", "hoop", "doughnut"),
    "heart": ("heart",),
    "cross": ("cross", "plus", "plus sign"),
    "moon": ("moon", "crescent", "crescent moon"),
}
SIZE_WORDS: dict[str, tuple[str, ...]] = {
    "small": ("small", "little", "tiny", "mini"),
    "medium": ("medium", "medium sized", "middle sized", "mid sized"),
    "big": ("big", "large", "huge", "giant", "enormous"),
}
VERBS = (
    ("moving", "moves"),
    ("drifting", "drifts"),
    ("going", "goes"),
    ("flying", "flies"),
    ("floating", "floats"),
    ("sliding", "slides"),
    ("gliding", "glides"),
    ("travelling", "travels"),
    ("heading", "heads"),
)


def _travels(*targets: str, others: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Every verb of travelling in both forms with every target, "moving left" first; then the other wordings."""
    first, *rest = [f"{form} {target}" for target in targets for pair in VERBS for form in pair]
    return (first, *rest, *others)


DIRECTIONS = {
    "left": ("left", "to the left", "leftwards", "from right to left"),
    "right": ("right", "to the right", "rightwards", "from left to right"),
    "up": ("up", "upwards", "upward"),
    "down": ("down", "downwards", "downward"),
}
MOTION_WORDS: dict[str, tuple[str, ...]] = {
    "left": _travels(*DIRECTIONS["left"]),
    "right": _travels(*DIRECTIONS["right"]),
    "up": _travels(*DIRECTIONS["up"], others=("rising", "rises", "climbing", "climbs", "ascending")),
    "down": _travels(*DIRECTIONS["down"], others=("falling", "falls", "sinking", "sinks", "dropping", "descending")),
    **{
        f"{along} {across}": _travels(
            f"{along} and {across}",
            f"{along} {across}",
            f"{along} and to the {across}",
            f"diagonally {along} {across}",
            f"{across} and {along}",
            f"to the {other} {across}",
        )
        for along, other in (("up", "upper"), ("down", "lower"))
        for across in ("left", "right")
    },
    "bounce": ("bouncing", "bounces", "jumping", "jumps", "hopping", "hops", "bouncing up and down"),
    "orbit": (
        *("circling", "circles", "orbiting", "orbits", "circling around", "circles around"),
        *("going in circles", "moving in circles", "moving in a circle", "goes round and round"),
    ),
    "grow": ("growing", "grows", "getting bigger", "gets bigger", "getting larger", "expanding", "expands", "swelling"),
    "shrink": ("shrinking", "shrinks", "getting smaller", "gets smaller", "contracting", "contracts"),
    "spin": ("spinning", "spins", "rotating", "rotates", "turning", "turns", "turning around", "twirling", "twirls"),
    "still": (
        *("standing still", "still", "stands still", "staying still", "stays still", "sitting still", "resting"),
        *("not moving", "motionless", "hovering", "hovers", "staying in place"),
    ),
}
BACKGROUND_WORDS: dict[str, tuple[str, ...]] = {
    "night": (
        *("at night", "under the stars", "in the night sky", "in the moonlight", "in the dark", "at midnight"),
        *("among the stars", "in the starry night", "in space"),
    ),
    "sky": ("in the sky", "up in the sky", "among the clouds", "by day", "in the clouds", "in the blue sky"),
    "sunset": ("at sunset", "in the evening", "at dusk", "before the setting sun", "in the sunset", "at sundown"),
    "meadow": ("in a meadow", "in the meadow", "on the grass", "over grassy hills", "in a field", "over green hills"),
    "desert": ("in the desert", "on the sand", "over the dunes", "among sand dunes", "over sandy hills"),
    "snow": ("in the snow", "in winter", "over snowy hills", "on the ice", "in a snowy landscape"),
    "sea": ("at sea", "on the sea", "over the sea", "over the waves", "on the ocean", "over the water", "in the ocean"),
    "city": (
        "in the city",
        "in a city",
        "over the city",
        "in town",
        "over the rooftops",
        "among skyscrapers",
        "downtown",
    ),
}
WORDS = {
    "colour": COLOUR_WORDS,
    "shape": SHAPE_WORDS,
    "size": SIZE_WORDS,
    "motion": MOTION_WORDS,
    "background": BACKGROUND_WORDS,
}
FILLERS = ("a", "an", "the", "of", "is", "that", "video", "clip", "with", "and", "one", "very", "there", "which", "it")
# Prompts for the page: what there is at a glance, so no two share more than a size; the last is in free wording.
EXAMPLES = (
    "a big red heart bouncing in a meadow",
    "a small yellow star circling at night",
    "a blue moon rising at sunset",
    "a big pink ring spinning in the snow",
    "over the waves, a tiny emerald ball drifts to the right",
)
MISSING = 0.06  # in free wording, the chance that an attribute is left out (then any value is right)
DROPPED = 0.1  # in free wording, the chance that a filler word is replaced by an unknown one
STRANGE = 0.15  # and that some unknown word stands anywhere in it


def canonical(scene: Scene) -> str:
    """The plain caption, e.g. "a big red circle moving left at night"."""
    word = {name: WORDS[name][value][0] for name, value in scene.names().items()}
    return f"a {word['size']} {word['colour']} {word['shape']} {word['motion']} {word['background']}"


def free(scene: Scene, rng: np.random.Generator, missing: float = MISSING) -> str:
    """A caption in other words and another order; may leave out attributes other than the shape."""

    def pick(name: str, value: str) -> str:
        options = WORDS[name][value]
        if name != "shape" and rng.random() < missing:
            return ""
        return options[0] if rng.random() < 0.4 else options[rng.integers(len(options))]

    word = {name: pick(name, value) for name, value in scene.names().items()}
    adjectives = [word["size"], word["colour"]]
    if rng.random() < 0.2:
        adjectives.reverse()
    article = ("a", "a", "the", "one", "")[rng.integers(5)]
    thing = " ".join(filter(None, [article, *adjectives, word["shape"]]))
    motion, place = word["motion"], word["background"]
    link = ("", "", "that is", "which is", "is")[rng.integers(5)] if motion.split(" ")[0].endswith("ing") else ""
    forms = (
        f"{thing} {link} {motion} {place}",
        f"{thing} {link} {motion}, {place}",
        f"{place}, {thing} {link} {motion}",
        f"{thing} {place}, {motion}",
        f"{place} {thing} {motion}",
        f"a video of {thing} {motion} {place}",
        f"{motion} {thing} {place}",
    )
    weights = np.array([4, 2, 2, 1, 1, 1, 1], dtype=np.float64)
    text = forms[rng.choice(len(forms), p=weights / weights.sum())]
    words = [w for w in text.split() if w != ","]
    fillers = set(FILLERS)
    words = [UNK if w in fillers and rng.random() < DROPPED else w for w in words]
    if rng.random() < STRANGE:
        words.insert(rng.integers(len(words) + 1), UNK)
    return " ".join(words)


def caption(scene: Scene, rng: np.random.Generator, canonical_share: float = 0.5) -> str:
    """A training caption: canonical or free."""
    return canonical(scene) if rng.random() < canonical_share else free(scene, rng)


def vocabulary() -> list[str]:
    """All words, special tokens first; the order is fixed, since weights depend on it."""
    words = set(FILLERS)
    for values in WORDS.values():
        for options in values.values():
            words |= {word for option in options for word in option.split()}
    return [PAD, EOS, UNK, *sorted(words)]


def build_tokenizer() -> Tokenizer:
    """Words in lower case, punctuation dropped, one end token."""
    tokens = {word: index for index, word in enumerate(vocabulary())}
    tokenizer = Tokenizer(WordLevel(tokens, unk_token=UNK))
    punctuation = Replace(Regex(r"[^\w\s]+"), " ")
    tokenizer.normalizer = Sequence([Lowercase(), punctuation])
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, tokens[EOS])])
    tokenizer.add_special_tokens([PAD, EOS, UNK])
    return tokenizer


def write_tokenizer(folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json as transformers' AutoTokenizer reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": TEXT_LENGTH,
        "pad_token": PAD,
        "eos_token": EOS,
        "unk_token": UNK,
        "padding_side": "right",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def encode(tokenizer: Tokenizer, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and mask, both int64 [N, TEXT_LENGTH]; longer texts are cut."""
    tokenizer.enable_truncation(TEXT_LENGTH)
    tokenizer.enable_padding(length=TEXT_LENGTH, pad_id=0, pad_token=PAD)
    encoded = tokenizer.encode_batch(texts)
    return np.array([e.ids for e in encoded]), np.array([e.attention_mask for e in encoded])
