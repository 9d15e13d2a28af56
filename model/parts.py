"""The parts of one model on one device, each weight held once: what modules and binaries alike refer to.

Knows no binaries. The text encoder stays a set of tensors until it has to run eagerly: its import takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from compile_cache.specs import constants_of

from .config import ModelConfig, read_config
from .control import GRAPH, PYTHON, Control
from .device import pick_device
from .generator import Condition, Generate
from .precision import Precision, pick_precision
from .progress import Progress, quiet
from .quantised import quantise
from .weights import load_text_encoder, load_transformer, load_vae, read_tensors, untied


@dataclass(frozen=True)
class Parts:
    """All of a model. Every weight is at one place in memory, whoever refers to it, and must not be changed."""

    config: ModelConfig
    precision: Precision
    device: torch.device
    text: Mapping[str, Tensor]  # the text encoder's weights, by name
    generate: Generate  # transformer and VAE, with the loop in plain Python
    size: int  # bytes of all weights

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and state, but for quantised weights."""
        return self.precision.dtype

    @cached_property
    def condition(self) -> Condition:
        """Raises ConfigError or WeightsError, where the text encoder does not fit its configuration."""
        encoder = load_text_encoder(self.config, self.text).to(self.device)
        return Condition(encoder, self.generate.transformer).eval()

    def modules(self) -> dict[str, nn.Module]:
        """Entry point -> module, to be run eagerly."""
        return {"condition": self.condition, "generate": self.generate}

    def graph(self, control: Control = GRAPH) -> dict[str, nn.Module]:
        """Entry point -> module, to be compiled: the loop as an operator of the graph."""
        plain = self.generate
        generate = Generate(plain.transformer, plain.vae, self.config, control).eval().to(self.device)
        return {"condition": self.condition, "generate": generate}

    def constants(self) -> dict[str, dict[str, Tensor]]:
        """Entry point -> name -> tensor: the weights and tables that a binary is given when it is loaded."""
        condition = {f"text_encoder.{name}": tensor for name, tensor in self.text.items()}
        condition |= {f"transformer.{name}": tensor for name, tensor in constants_of(self.generate.transformer).items()}
        return {"condition": condition, "generate": constants_of(self.generate)}

    def weights(self) -> list[Tensor]:
        """All of them, by reference; some are listed twice."""
        return [tensor for named in self.constants().values() for tensor in named.values()]


def load_parts(folder: Path | str, precision: str = "auto", device: str = "auto", progress: Progress = quiet) -> Parts:
    """Reads the model in `folder`, quantises what `precision` says, and places it on the device.

    precision, device: names of `precision.PRECISIONS` and `device.DEVICES`. progress(bytes read, bytes in all), of each
    part. Raises ConfigError or WeightsError, naming the file and what does not fit.
    """
    folder, place = Path(folder), pick_device(device)
    chosen, config = pick_precision(precision, place), read_config(folder)
    return assemble(config, chosen, place, lambda part: read_tensors(folder, part, chosen.dtype, progress))


def assemble(
    config: ModelConfig, chosen: Precision, place: torch.device, tensors: Callable[[str], dict[str, Tensor]]
) -> Parts:
    """The parts from each one's tensors, which are asked for one part after the other, in `chosen.dtype`.

    Raises WeightsError, naming what does not fit.
    """
    transformer = load_transformer(config, tensors("transformer"))
    if chosen.linear:
        quantise(transformer.blocks, chosen.linear, place.type)
    vae, text = load_vae(config, tensors("vae")), tensors("text_encoder")
    generate = Generate(transformer, vae, config, PYTHON).eval()
    # Before they are placed: a platform that lends GPUs may take the weights of a process that has none.
    size = sum(t.numel() * t.element_size() for t in (*text.values(), *constants_of(generate).values()))
    text = untied({name: tensor.to(place) for name, tensor in text.items()})
    return Parts(config, chosen, place, text, generate.to(place), size)
