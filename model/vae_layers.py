"""The layers of the causal Wan VAE and what they remember: convolutions, norms, resampling, shortcuts.

Knows no configuration and no order of things: that is vae.py. Key names and numbers are those of diffusers'
`AutoencoderKLWan`.

Time is causal. A temporal convolution reads the two frames before its input; a `History` supplies them and keeps
the last two for the next call. The first latent frame stands for one frame and every later one for
`temporal_factor`. To keep the first call the same graph as the rest, it also produces `temporal_factor` frames,
of which all but the last are void: every convolution sees zeros in their place, as if the clip began after them.

Tensors are [B, C, T, H, W] with channels last in memory, which convolutions in bfloat16 take without reordering; the
caches, which callers hold, have that order in their shape: [B, 2, H, W, C].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CACHE_FRAMES = 2  # every temporal kernel has three taps


class History:
    """What temporal convolutions have seen. One pass through the decoder consumes and renews every cache.

    `caches` None means a clip from its start (zeros), with nothing kept. `first` (0-d bool) marks a decoder's call
    that holds the first latent frame; `factor` is the number of frames per latent frame at the current depth.
    """

    def __init__(self, caches: Sequence[Tensor] | None = None, first: Tensor | None = None) -> None:
        self._caches = None if caches is None else iter(caches)
        self.first = first
        self.factor = 1
        self.kept: list[Tensor] = []

    def void(self, frames: int, count: int, device: torch.device) -> Tensor:
        """[frames, 1, 1] bool: the leading `count` frames, in the first call."""
        return ((torch.arange(frames, device=device) < count) & self.first).view(-1, 1, 1)

    def extend(self, x: Tensor, void_frames: int | None = None) -> Tensor:
        """[B, C, T, H, W] -> [B, C, 2 + T, H, W]: void frames zeroed, the two frames before them prepended."""
        void_frames = self.factor - 1 if void_frames is None else void_frames
        if self.first is not None and void_frames:
            x = x * ~self.void(x.shape[2], void_frames, x.device)
        if self._caches is None:
            return F.pad(x, (0, 0, 0, 0, CACHE_FRAMES, 0))
        x = torch.cat([channels_first(next(self._caches)), x], dim=2)
        self.kept.append(channels_last(x[:, :, -CACHE_FRAMES:]).clone(memory_format=torch.contiguous_format))
        # Said before each convolution: inside the graph's branch a permuted view becomes a copy and loses its order.
        return x.contiguous(memory_format=torch.channels_last_3d)


def channels_last(x: Tensor) -> Tensor:
    """[B, C, T, H, W] seen as [B, T, H, W, C]"""
    return x.permute(0, 2, 3, 4, 1)


def channels_first(x: Tensor) -> Tensor:
    """[B, T, H, W, C] seen as [B, C, T, H, W]"""
    return x.permute(0, 4, 1, 2, 3)


class CausalConv3d(nn.Conv3d):
    """A 3×3×3 convolution, causal in time, or a pointwise one."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs, outputs, kernel, padding=(0, kernel // 2, kernel // 2))

    def forward(self, x: Tensor, history: History | None = None) -> Tensor:
        return super().forward(x if history is None else history.extend(x))


class RmsNorm(nn.Module):
    """L2 normalisation over channels, times √C and a gain; computed in float32."""

    def __init__(self, channels: int, rank: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels, *(1,) * rank))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x.float(), dim=1).to(x.dtype) * self.gamma.shape[0] ** 0.5 * self.gamma


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1 = RmsNorm(inputs, 3)
        self.conv1 = CausalConv3d(inputs, outputs, 3)
        self.norm2 = RmsNorm(outputs, 3)
        self.conv2 = CausalConv3d(outputs, outputs, 3)
        self.conv_shortcut = CausalConv3d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x: Tensor, history: History) -> Tensor:
        shortcut = x if self.conv_shortcut is None else self.conv_shortcut(x)
        x = self.conv1(F.silu(self.norm1(x)), history)
        return self.conv2(F.silu(self.norm2(x)), history) + shortcut


class AttentionBlock(nn.Module):
    """Single-head attention over the pixels of each frame; frames do not see each other."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = RmsNorm(channels, 2)
        self.to_qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.proj = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor, history: History) -> Tensor:
        batch, channels, frames, height, width = x.shape
        images = x.transpose(1, 2).reshape(batch * frames, channels, height, width)
        qkv = self.to_qkv(self.norm(images)).flatten(2).transpose(1, 2).unsqueeze(1)  # [BT, 1, HW, 3C]
        attended = F.scaled_dot_product_attention(*(part.contiguous() for part in qkv.chunk(3, dim=-1)))
        attended = attended.squeeze(1).transpose(1, 2).reshape(batch * frames, channels, height, width)
        return self.proj(attended).view(batch, frames, channels, height, width).transpose(1, 2) + x


def frame_conv(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """A 2-D convolution on every frame of [B, C, T, H, W], with no reordering of the tensor."""
    stride, padding = (1, *conv.stride), (0, *conv.padding)
    x = x.contiguous(memory_format=torch.channels_last_3d)
    return F.conv3d(x, conv.weight.unsqueeze(2), conv.bias, stride, padding)


class Upsample(nn.Module):
    """Twice the height and width; with `temporal`, also twice the frames."""

    def __init__(self, inputs: int, outputs: int, temporal: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(nn.Identity(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.time_conv = nn.Conv3d(inputs, 2 * inputs, (3, 1, 1)) if temporal else None

    def forward(self, x: Tensor, history: History) -> Tensor:
        if self.time_conv is not None:
            x = self._double_frames(x, history)
        return frame_conv(self.resample[1], double_pixels(x))

    def _double_frames(self, x: Tensor, history: History) -> Tensor:
        factor = history.factor
        # The first latent frame is not doubled, nor does the convolution ever see it.
        pairs = channels_last(self.time_conv(history.extend(x, void_frames=factor)))
        doubled = pairs.unflatten(-1, (2, -1)).movedim(-2, 2).flatten(1, 2)  # [B, T, 2, H, W, C] -> [B, 2T, ...]
        history.factor = 2 * factor
        repeated = channels_last(x).repeat_interleave(2, dim=1)
        first_only = history.void(doubled.shape[1], 2 * factor, x.device)
        return channels_first(torch.where(first_only.unsqueeze(-1), repeated, doubled))


def double_pixels(x: Tensor) -> Tensor:
    """Nearest-neighbour upsampling of height and width by two."""
    pixels = channels_last(x)[:, :, :, None, :, None]
    batch, frames, height, _, width, _, channels = pixels.shape
    pixels = pixels.expand(batch, frames, height, 2, width, 2, channels)
    return channels_first(pixels.reshape(batch, frames, 2 * height, 2 * width, channels))


class Downsample(nn.Module):
    """Half the height and width; with `temporal`, half the frames after the first."""

    def __init__(self, channels: int, temporal: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(nn.Identity(), nn.Conv2d(channels, channels, 3, stride=2))
        self.time_conv = nn.Conv3d(channels, channels, (3, 1, 1), stride=(2, 1, 1)) if temporal else None

    def forward(self, x: Tensor, history: History) -> Tensor:
        x = frame_conv(self.resample[1], F.pad(x, (0, 1, 0, 1)))
        if self.time_conv is None or x.shape[2] == 1:
            return x
        return torch.cat([x[:, :, :1], self.time_conv(x)], dim=2)


def average_down(x: Tensor, outputs: int, temporal: int, spatial: int) -> Tensor:
    """Shortcut of the 2.2 encoder: space and time folded into channels, then averaged in groups."""
    x = F.pad(x, (0, 0, 0, 0, -x.shape[2] % temporal, 0))
    batch, channels, frames, height, _ = x.shape
    x = x.view(batch, channels, frames // temporal, temporal, height // spatial, spatial, -1, spatial)
    x = x.permute(0, 1, 3, 5, 7, 2, 4, 6).flatten(1, 4)
    return x.unflatten(1, (outputs, -1)).mean(dim=2)


def duplicate_up(x: Tensor, outputs: int, temporal: int, spatial: int) -> Tensor:
    """Shortcut of the 2.2 decoder: channels repeated, then unfolded into time and space."""
    batch, channels, frames, height, width = x.shape
    x = x.repeat_interleave(outputs * temporal * spatial**2 // channels, dim=1)
    x = x.view(batch, outputs, temporal, spatial, spatial, frames, height, width)
    x = x.permute(0, 1, 5, 2, 6, 3, 7, 4)
    return x.reshape(batch, outputs, frames * temporal, height * spatial, width * spatial)
