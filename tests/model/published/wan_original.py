"""The tensor names of the original Wan 2.1 code at 1.3B, written down from its module tree. For tests only."""

from __future__ import annotations


def transformer_names(layers: int = 30) -> list[str]:
    outer = ["patch_embedding", "text_embedding.0", "text_embedding.2", "time_embedding.0", "time_embedding.2",
             "time_projection.1", "head.head"]  # fmt: skip
    names = [*both(*outer), "head.modulation"]
    for block in (f"blocks.{index}." for index in range(layers)):
        for attention in ("self_attn", "cross_attn"):
            names += both(*(f"{block}{attention}.{part}" for part in "qkvo"))
            names += [f"{block}{attention}.norm_{part}.weight" for part in "qk"]
        names += [*both(f"{block}norm3", f"{block}ffn.0", f"{block}ffn.2"), f"{block}modulation"]
    return names


def vae_names() -> list[str]:
    names = both("conv1", "conv2")
    for coder in ("encoder", "decoder"):
        names += [*both(f"{coder}.conv1", f"{coder}.head.2"), f"{coder}.head.0.gamma"]
        names += residual(f"{coder}.middle.0") + residual(f"{coder}.middle.2") + [f"{coder}.middle.1.norm.gamma"]
        names += both(f"{coder}.middle.1.to_qkv", f"{coder}.middle.1.proj")
    # Widths 96, 96, 192, 384, 384 downwards: a shortcut where they change.
    kinds = ["res", "res", "2d", "wider", "res", "3d", "wider", "res", "3d", "res", "res"]
    names += layers("encoder.downsamples", kinds)
    # Upwards 384, 384, 384, 192, 96, and an upsampler halves what it hands on: 384, 192, 192, 96 arrive.
    kinds = ["res"] * 3 + ["3d", "wider", "res", "res", "3d"] + ["res"] * 3 + ["2d"] + ["res"] * 3
    return names + layers("decoder.upsamples", kinds)


def layers(prefix: str, kinds: list[str]) -> list[str]:
    names = []
    for name, kind in ((f"{prefix}.{index}", kind) for index, kind in enumerate(kinds)):
        if kind in ("2d", "3d"):
            names += both(f"{name}.resample.1") + (both(f"{name}.time_conv") if kind == "3d" else [])
        else:
            names += residual(name) + (both(f"{name}.shortcut") if kind == "wider" else [])
    return names


def residual(name: str) -> list[str]:
    return [f"{name}.residual.0.gamma", f"{name}.residual.3.gamma",
            *both(f"{name}.residual.2", f"{name}.residual.6")]  # fmt: skip


def both(*modules: str) -> list[str]:
    return [f"{module}.{parameter}" for module in modules for parameter in ("weight", "bias")]
