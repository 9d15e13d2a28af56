"""The tensor names of the original Wan code and those of diffusers, which are ours. Knows names only, no tensors.

The tables map modules, since a module's parameters (weight, bias, gamma) are named alike in both; the modulations,
which belong to no module of their own, stand in them with their full names. Both directions are exact: a name that
the configured model does not have is in neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..config import TransformerConfig, VaeConfig

PARAMETERS = ("weight", "bias", "gamma")
MODULATIONS = ("modulation", "scale_shift_table")
ATTENTION = {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out.0", "norm_q": "norm_q", "norm_k": "norm_k"}
RESIDUAL = {
    "residual.0": "norm1",
    "residual.2": "conv1",
    "residual.3": "norm2",
    "residual.6": "conv2",
    "shortcut": "conv_shortcut",
}
RESAMPLE = {"resample.1": "resample.1", "time_conv": "time_conv"}


def transformer_modules(config: TransformerConfig) -> dict[str, str]:
    """Wan's module or full name -> diffusers'. Wan's norm3 comes before its norm2, so that they swap their names."""
    embedder = "condition_embedder"
    modules = {
        "patch_embedding": "patch_embedding",
        "time_embedding.0": f"{embedder}.time_embedder.linear_1",
        "time_embedding.2": f"{embedder}.time_embedder.linear_2",
        "time_projection.1": f"{embedder}.time_proj",
        "text_embedding.0": f"{embedder}.text_embedder.linear_1",
        "text_embedding.2": f"{embedder}.text_embedder.linear_2",
        "head.head": "proj_out",
        "head.modulation": "scale_shift_table",
    }
    block = {"modulation": "scale_shift_table", "norm3": "norm2", "ffn.0": "ffn.net.0.proj", "ffn.2": "ffn.net.2"}
    block |= _below("self_attn", "attn1", ATTENTION) | _below("cross_attn", "attn2", ATTENTION)
    for index in range(config.num_layers):
        modules |= _below(f"blocks.{index}", f"blocks.{index}", block)
    return modules


def vae_modules(config: VaeConfig) -> dict[str, str]:
    """The same for the VAE in its Wan 2.1 form, where diffusers groups only the decoder's layers by stage."""
    modules = {"conv1": "quant_conv", "conv2": "post_quant_conv"}
    for coder in ("encoder", "decoder"):
        modules |= {
            f"{coder}.conv1": f"{coder}.conv_in",
            f"{coder}.head.0": f"{coder}.norm_out",
            f"{coder}.head.2": f"{coder}.conv_out",
        }
        middle = f"{coder}.mid_block"
        modules |= _below(f"{coder}.middle.0", f"{middle}.resnets.0", RESIDUAL)
        modules |= _below(f"{coder}.middle.2", f"{middle}.resnets.1", RESIDUAL)
        attention = {name: name for name in ("norm", "to_qkv", "proj")}
        modules |= _below(f"{coder}.middle.1", f"{middle}.attentions.0", attention)
    stages, blocks = len(config.dim_mult), config.num_res_blocks
    for index in range(stages * (blocks + 1) - 1):
        kind = RESAMPLE if index % (blocks + 1) == blocks else RESIDUAL
        modules |= _below(f"encoder.downsamples.{index}", f"encoder.down_blocks.{index}", kind)
    for index in range(stages * (blocks + 2) - 1):
        stage, within = divmod(index, blocks + 2)
        last = within == blocks + 1
        name = f"decoder.up_blocks.{stage}." + ("upsamplers.0" if last else f"resnets.{within}")
        modules |= _below(f"decoder.upsamples.{index}", name, RESAMPLE if last else RESIDUAL)
    return modules


def renamed(name: str, modules: Mapping[str, str]) -> str | None:
    """A tensor's name in the other naming; None where the table does not know it."""
    module, _, parameter = name.rpartition(".")
    if parameter in MODULATIONS:
        return modules.get(name)
    if parameter not in PARAMETERS or module.endswith(MODULATIONS) or module not in modules:
        return None
    return f"{modules[module]}.{parameter}"


def original_names(names: Iterable[str], modules: Mapping[str, str]) -> dict[str, str]:
    """Wan's name -> diffusers', for the given names of diffusers. Raises KeyError for one that has no original."""
    back = {ours: wan for wan, ours in modules.items()}
    found = {}
    for name in names:
        wan = renamed(name, back)
        if wan is None:
            raise KeyError(name)
        found[wan] = name
    return found


def _below(wan: str, ours: str, modules: Mapping[str, str]) -> dict[str, str]:
    return {f"{wan}.{inner}": f"{ours}.{name}" for inner, name in modules.items()}
