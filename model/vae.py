"""The causal Wan VAE: encode a clip, decode latents with explicit caches. Knows nothing of the transformer.

Both published forms are here: Wan 2.1 (plain) and Wan 2.2 (patchified, with averaged shortcuts). Key names are
those of diffusers' `AutoencoderKLWan`, and so are the numbers: decoding block by block equals its decode of the
whole latent. The layers, and how a decoder remembers, are in vae_layers.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import VaeConfig
from .vae_layers import (
    AttentionBlock,
    CausalConv3d,
    Downsample,
    History,
    ResidualBlock,
    RmsNorm,
    Upsample,
    average_down,
    duplicate_up,
)


class DownStage(nn.Module):
    """A stage of the 2.2 encoder."""

    def __init__(self, inputs: int, outputs: int, blocks: int, temporal: bool, down: bool) -> None:
        super().__init__()
        self.fold = (outputs, 2 if temporal else 1, 2 if down else 1)
        widths = [inputs] + [outputs] * blocks
        self.resnets = nn.ModuleList(ResidualBlock(a, b) for a, b in pairwise(widths))
        self.downsampler = Downsample(outputs, temporal) if down else None

    def forward(self, x: Tensor, history: History) -> Tensor:
        shortcut = average_down(x, *self.fold)
        for resnet in self.resnets:
            x = resnet(x, history)
        return (x if self.downsampler is None else self.downsampler(x, history)) + shortcut


class UpStage(nn.Module):
    """A stage of the decoder: residual blocks, then an upsampler; in the 2.2 form with a duplicated shortcut."""

    def __init__(self, inputs: int, outputs: int, blocks: int, temporal: bool, up: bool, residual: bool) -> None:
        super().__init__()
        widths = [inputs] + [outputs] * (blocks + 1)
        self.resnets = nn.ModuleList(ResidualBlock(a, b) for a, b in pairwise(widths))
        self.unfold = (outputs, 2 if temporal else 1, 2) if residual and up else None
        self.upsampler = Upsample(outputs, outputs, temporal) if residual and up else None
        self.upsamplers = nn.ModuleList([Upsample(outputs, outputs // 2, temporal)] if up and not residual else [])

    def forward(self, x: Tensor, history: History) -> Tensor:
        shortcut = None if self.unfold is None else duplicate_up(x, *self.unfold)
        for resnet in self.resnets:
            x = resnet(x, history)
        for upsampler in self.upsamplers if self.upsampler is None else [self.upsampler]:
            x = upsampler(x, history)
        return x if shortcut is None else x + shortcut


class MidBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(ResidualBlock(channels, channels) for _ in range(2))
        self.attentions = nn.ModuleList([AttentionBlock(channels)])

    def forward(self, x: Tensor, history: History) -> Tensor:
        return self.resnets[1](self.attentions[0](self.resnets[0](x, history), history), history)


class Coder(nn.Module):
    """What encoder and decoder share: the convolutions at both ends and the order of things between."""

    def __init__(self, inputs: int, first: int, last: int, outputs: int, mid: int) -> None:
        super().__init__()
        self.conv_in = CausalConv3d(inputs, first, 3)
        self.mid_block = MidBlock(mid)
        self.norm_out = RmsNorm(last, 3)
        self.conv_out = CausalConv3d(last, outputs, 3)

    def forward(self, x: Tensor, history: History) -> Tensor:
        x = self.conv_in(x, history)
        for stage in self.stages():
            x = stage(x, history)
        return self.conv_out(F.silu(self.norm_out(x)), history)

    def stages(self) -> list[nn.Module]:
        raise NotImplementedError


class Encoder(Coder):
    def __init__(self, config: VaeConfig) -> None:
        widths = [config.base_dim * factor for factor in (1, *config.dim_mult)]
        super().__init__(config.in_channels, widths[0], widths[-1], 2 * config.z_dim, widths[-1])
        temporal = (*config.temperal_downsample, False)
        stages: list[nn.Module] = []
        for index, (inputs, outputs) in enumerate(pairwise(widths)):
            down = index + 1 < len(config.dim_mult)
            if config.is_residual:
                stages.append(DownStage(inputs, outputs, config.num_res_blocks, temporal[index], down))
                continue
            for block in range(config.num_res_blocks):
                stages.append(ResidualBlock(inputs if block == 0 else outputs, outputs))
            if down:
                stages.append(Downsample(outputs, temporal[index]))
        self.down_blocks = nn.ModuleList(stages)

    def stages(self) -> list[nn.Module]:
        return [*self.down_blocks, self.mid_block]


class Decoder(Coder):
    def __init__(self, config: VaeConfig) -> None:
        widths = _decoder_widths(config)
        super().__init__(config.z_dim, widths[0], widths[-1], config.out_channels, widths[0])
        temporal = (*reversed(config.temperal_downsample), False)
        self.up_blocks = nn.ModuleList()
        for index, (inputs, outputs) in enumerate(pairwise(widths)):
            up = index + 1 < len(config.dim_mult)
            inputs = inputs // 2 if index and not config.is_residual else inputs
            self.up_blocks.append(
                UpStage(inputs, outputs, config.num_res_blocks, temporal[index], up, config.is_residual)
            )

    def stages(self) -> list[nn.Module]:
        return [self.mid_block, *self.up_blocks]


class WanVae(nn.Module):
    """Encoder, decoder and the statistics that bring latents to zero mean and unit deviation."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.quant_conv = CausalConv3d(2 * config.z_dim, 2 * config.z_dim, 1)
        self.post_quant_conv = CausalConv3d(config.z_dim, config.z_dim, 1)
        self.decoder = Decoder(config)
        statistics = torch.tensor([config.latents_mean, config.latents_std], device="cpu")
        self.register_buffer("latent_statistics", statistics.view(2, 1, -1, 1, 1, 1), persistent=False)

    def normalise(self, raw: Tensor) -> Tensor:
        """Raw latents [B, C, F, h, w] -> the transformer's latents: (raw − mean) / std."""
        return (raw - self.latent_statistics[0]) / self.latent_statistics[1]

    def denormalise(self, latents: Tensor) -> Tensor:
        """The inverse of `normalise`: latents · std + mean."""
        return latents * self.latent_statistics[1] + self.latent_statistics[0]

    def encode(self, video: Tensor) -> Tensor:
        """[B, 3, 1 + 4k, H, W] in [−1, 1] -> raw latent means [B, z, 1 + k, H/8, W/8], in one causal pass."""
        hidden = self.encoder(patchify(video, self.config.patch_size or 1), History())
        return self.quant_conv(hidden)[:, : self.config.z_dim]

    def decode(self, raw: Tensor, caches: Sequence[Tensor], first: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Raw latents [B, z, F, h, w] -> ([B, 3, 4F, H, W] in [−1, 1], renewed caches).

        `first` (0-d bool) says that `raw` begins the clip: then the first `temporal_factor` − 1 frames are void.
        """
        history = History(caches, first)
        return self._decode(raw, history), history.kept

    def decode_clip(self, raw: Tensor) -> Tensor:
        """Raw latents [B, z, F, h, w] -> [B, 3, 4F − 3, H, W], in one pass from the clip's start."""
        history = History(first=torch.ones((), dtype=torch.bool, device=raw.device))
        return self._decode(raw, history)[:, :, self.config.temporal_factor - 1 :]

    def _decode(self, raw: Tensor, history: History) -> Tensor:
        raw = raw.contiguous(memory_format=torch.channels_last_3d)
        hidden = self.decoder(self.post_quant_conv(raw), history)
        return unpatchify(hidden, self.config.patch_size or 1).clamp(-1, 1)


def decoder_caches(config: VaeConfig) -> list[tuple[int, int]]:
    """(channels, pixels per latent side) of every cache [B, 2, h·scale, w·scale, C] of the decoder, in order of use."""
    widths, scale = _decoder_widths(config), 1
    plan = [(config.z_dim, 1)] + [(widths[0], 1)] * 4
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        inputs = inputs // 2 if index and not config.is_residual else inputs
        resnets = 2 * config.num_res_blocks + 1  # convolutions after the first
        plan += [(inputs, scale)] + [(outputs, scale)] * resnets
        if index + 1 < len(config.dim_mult):
            plan += [(outputs, scale)] * bool(config.temperal_downsample[-1 - index])
            scale *= 2
    return [*plan, (widths[-1], scale)]


def _decoder_widths(config: VaeConfig) -> list[int]:
    base = config.decoder_base_dim or config.base_dim
    return [base * factor for factor in (config.dim_mult[-1], *reversed(config.dim_mult))]


def patchify(video: Tensor, patch: int) -> Tensor:
    """[B, C, T, H, W] -> [B, C·p², T, H/p, W/p]; within a channel, width varies slower than height."""
    if patch == 1:
        return video
    batch, channels, frames, height, width = video.shape
    video = video.view(batch, channels, frames, height // patch, patch, width // patch, patch)
    return video.permute(0, 1, 6, 4, 2, 3, 5).flatten(1, 3)


def unpatchify(hidden: Tensor, patch: int) -> Tensor:
    """The inverse of `patchify`."""
    if patch == 1:
        return hidden
    batch, _, frames, height, width = hidden.shape
    hidden = hidden.view(batch, -1, patch, patch, frames, height, width).permute(0, 1, 4, 5, 3, 6, 2)
    return hidden.reshape(batch, -1, frames, height * patch, width * patch)
