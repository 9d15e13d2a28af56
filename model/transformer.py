"""The causal Wan transformer (DiT). Knows nothing of sampling, noise or the VAE.

Architecture and key names are those of diffusers' `WanTransformer3DModel`; causality is that of Self-Forcing. The
same weights run in two forms: `forward` sees a whole sequence at once, with a mask over frames (training, parity
tests), and `step` sees one block and a ring of cached keys and values (generation).

Shapes: B batch, F latent frames, P = h·w/4 patches of a frame, C width, H heads, D head channels, L text tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import TransformerConfig

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # (q, k, v) [B, F, P, H, D] -> [B, F, P, H, D]
KeyValue = tuple[Tensor, Tensor]


class Rope(nn.Module):
    """Rotary positions in time, height and width: adjacent channel pairs turn by position · θ^(−2i/dim).

    Tables instead of in-graph trigonometry, since compiled and eager sines differ in the last bit.
    """

    def __init__(self, dims: tuple[int, int, int], length: int, theta: float = 10_000.0) -> None:
        super().__init__()
        for axis, dim in zip("thw", dims, strict=True):
            rates = theta ** -(torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)
            angles = torch.outer(torch.arange(length, dtype=torch.float64, device="cpu"), rates)
            table = torch.stack([angles.cos(), angles.sin()]).float()  # [2, length, dim / 2]
            self.register_buffer(f"table_{axis}", table, persistent=False)

    def forward(self, frame_positions: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines, float32 [F, rows, columns, 1, D / 2], for frames at the given positions [F]."""
        shape = (2, frame_positions.shape[0], rows, columns, -1)
        time = self.table_t.index_select(1, frame_positions)[:, :, None, None].expand(shape)
        height = self.table_h[:, :rows][:, None, :, None].expand(shape)
        width = self.table_w[:, :columns][:, None, None].expand(shape)
        cos, sin = torch.cat([time, height, width], dim=-1).unsqueeze(-2).unbind(0)
        return cos, sin


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the channel pairs of x [..., H, D] by the angles [..., 1, D / 2]; float32 inside."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax attention of q [B, ..., H, D] over k, v [B, ..., H, D]; middle dimensions are the sequence."""
    heads = [part.flatten(1, -3).transpose(1, 2) for part in (q, k, v)]
    attended = F.scaled_dot_product_attention(*heads, attn_mask=mask)
    return attended.transpose(1, 2).view(q.shape)


class Attention(nn.Module):
    """Projections of one attention; q and k pass an RMS norm over the full width before the heads are split."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width = config.width
        self.head_dim = config.attention_head_dim
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(width, width)
        self.to_v = nn.Linear(width, width)
        self.to_out = nn.ModuleList([nn.Linear(width, width)])
        self.norm_q = nn.RMSNorm(width, eps=config.eps)
        self.norm_k = nn.RMSNorm(width, eps=config.eps)

    def query(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., H, D]"""
        return self.norm_q(self.to_q(x)).unflatten(-1, (-1, self.head_dim))

    def key_value(self, x: Tensor) -> KeyValue:
        """[..., C] -> two of [..., H, D]"""
        key = self.norm_k(self.to_k(x)).unflatten(-1, (-1, self.head_dim))
        return key, self.to_v(x).unflatten(-1, (-1, self.head_dim))

    def out(self, attended: Tensor) -> Tensor:
        """[..., H, D] -> [..., C]"""
        return self.to_out[0](attended.flatten(-2))


class TwoLinear(nn.Module):
    """linear_1, an activation, linear_2: the time and text embedders."""

    def __init__(self, inputs: int, width: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(inputs, width)
        self.linear_2 = nn.Linear(width, width)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(self.activation(self.linear_1(x)))


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


class FeedForward(nn.Module):
    """Keys `net.0.proj` and `net.2`, as diffusers names them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        first = nn.Module()
        first.proj = nn.Linear(width, hidden)
        self.net = nn.ModuleList([first, nn.Identity(), nn.Linear(hidden, width)])

    def forward(self, x: Tensor) -> Tensor:
        return self.net[2](gelu_tanh(self.net[0].proj(x)))


class ConditionEmbedder(nn.Module):
    """Timestep and text embeddings at the transformer's width."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        half = config.freq_dim // 2
        rates = torch.exp(-math.log(10_000.0) * torch.arange(half, dtype=torch.float32, device="cpu") / half)
        self.register_buffer("rates", rates, persistent=False)
        self.time_embedder = TwoLinear(config.freq_dim, config.width, F.silu)
        self.time_proj = nn.Linear(config.width, 6 * config.width)
        self.text_embedder = TwoLinear(config.text_dim, config.width, gelu_tanh)

    def time(self, timestep: Tensor) -> tuple[Tensor, Tensor]:
        """Timesteps [B, F] in [0, 1000] -> embedding [B, F, C] and modulation [B, F, 6, C]."""
        angles = timestep.float().unsqueeze(-1) * self.rates
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1).to(self.time_proj.weight.dtype)
        embedding = self.time_embedder(waves)
        return embedding, self.time_proj(F.silu(embedding)).unflatten(-1, (6, -1))


class TransformerBlock(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width = config.width
        self.norm1 = nn.LayerNorm(width, config.eps, elementwise_affine=False)
        self.attn1 = Attention(config)
        self.norm2 = nn.LayerNorm(width, config.eps) if config.cross_attn_norm else nn.Identity()
        self.attn2 = Attention(config)
        self.norm3 = nn.LayerNorm(width, config.eps, elementwise_affine=False)
        self.ffn = FeedForward(width, config.ffn_dim)
        self.scale_shift_table = nn.Parameter(torch.empty(1, 6, width))

    def forward(self, x: Tensor, modulation: Tensor, cross: KeyValue, attend: Attend) -> Tensor:
        """x [B, F, P, C], modulation [B, F, 6, C], cross-attention keys and values [B, L, H, D]."""
        parts = (self.scale_shift_table.float() + modulation.float()).unsqueeze(2)  # [B, F, 1, 6, C]
        shift, scale, gate, ff_shift, ff_scale, ff_gate = parts.unbind(-2)

        hidden = modulate(self.norm1, x, shift, scale)
        attended = self.attn1.out(attend(self.attn1.query(hidden), *self.attn1.key_value(hidden)))
        x = (x.float() + attended * gate).to(x.dtype)

        hidden = float_norm(self.norm2, x).to(x.dtype)
        x = x + self.attn2.out(attention(self.attn2.query(hidden), *cross))

        hidden = modulate(self.norm3, x, ff_shift, ff_scale)
        return (x.float() + self.ffn(hidden).float() * ff_gate).to(x.dtype)


def float_norm(norm: nn.Module, x: Tensor) -> Tensor:
    """A layer norm in float32, whatever the dtype of its gains."""
    if not isinstance(norm, nn.LayerNorm):
        return x.float()
    gains = [None if gain is None else gain.float() for gain in (norm.weight, norm.bias)]
    return F.layer_norm(x.float(), norm.normalized_shape, *gains, norm.eps)


def modulate(norm: nn.Module, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return (float_norm(norm, x) * (1 + scale) + shift).to(x.dtype)


class CausalWanTransformer(nn.Module):
    """Its `scale_shift_table`s are not initialised: weights are loaded, or drawn by whoever trains them.

    Drawing random numbers on the meta device would import torch._dynamo, which takes a second.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.rope = Rope(config.rope_dims, config.rope_max_seq_len)
        patch = config.patch_size
        self.patch_embedding = nn.Conv3d(config.in_channels, config.width, patch, stride=patch)
        self.condition_embedder = ConditionEmbedder(config)
        self.blocks = nn.ModuleList(TransformerBlock(config) for _ in range(config.num_layers))
        self.norm_out = nn.LayerNorm(config.width, config.eps, elementwise_affine=False)
        self.proj_out = nn.Linear(config.width, config.out_channels * math.prod(patch))
        self.scale_shift_table = nn.Parameter(torch.empty(1, 2, config.width))

    def cross_kv(self, text: Tensor) -> list[KeyValue]:
        """Text embeddings [B, L, text_dim] -> every layer's cross-attention keys and values [B, L, H, D].

        Positions past the prompt's length are zeros and take part, as in Wan.
        """
        context = self.condition_embedder.text_embedder(text)
        return [block.attn2.key_value(context) for block in self.blocks]

    def forward(
        self, latents: Tensor, timestep: Tensor, text: Tensor, frame_positions: Tensor, visible: Tensor
    ) -> Tensor:
        """A whole sequence at once.

        latents [B, 16, F, h, w], timestep [B, F], text [B, L, text_dim], frame_positions [F] int64 (of each frame in
        time), visible [F, F] bool (row's frame may look at column's frame) -> flow [B, 16, F, h, w].
        """
        rows, columns = self._patches(latents)
        angles = self.rope(frame_positions, rows, columns)
        cos, sin = (table.flatten(1, 2) for table in angles)  # [F, P, 1, D / 2]
        mask = visible.repeat_interleave(rows * columns, 0).repeat_interleave(rows * columns, 1)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(rotate(q, cos, sin), rotate(k, cos, sin), v, mask)

        return self.run(latents, timestep, self.cross_kv(text), [attend] * len(self.blocks))

    def step(
        self,
        latents: Tensor,
        timestep: Tensor,
        cross: Sequence[KeyValue],
        cache: Sequence[KeyValue],
        slot: Tensor,
        slot_positions: Tensor,
        held: int,
    ) -> Tensor:
        """One block, with earlier blocks in the cache.

        latents [1, 16, F, h, w], timestep [1, F]; cache: per layer keys and values [S, F, rows, columns, H, D],
        written in place at slot `slot` (0-d int64) before attention reads them; slot_positions [S] int64 (position of
        each slot's block in the window); held: how many slots hold something, the first ones, which is what the
        attention's cost goes by -> flow [1, 16, F, h, w].

        Keys are kept unrotated and turned when read, at positions relative to the window, so positions never run out.
        """
        frames = latents.shape[2]
        rows, columns = self._patches(latents)
        within = torch.arange(frames, device=latents.device)
        window = self.rope((slot_positions[:, None] * frames + within).flatten(), rows, columns)
        key_cos, key_sin = (table.unflatten(0, (-1, frames)) for table in window)  # [S, F, rows, columns, 1, D / 2]
        query_cos, query_sin = (t.index_select(0, slot[None]).flatten(2, 3) for t in (key_cos, key_sin))
        key_cos, key_sin = (table.narrow(0, 0, held) for table in (key_cos, key_sin))

        def attend_with(keys: Tensor, values: Tensor) -> Attend:
            def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                keys.index_copy_(0, slot[None], k.view(1, frames, rows, columns, *k.shape[3:]))
                values.index_copy_(0, slot[None], v.view(1, frames, rows, columns, *v.shape[3:]))
                turned, seen = rotate(keys.narrow(0, 0, held), key_cos, key_sin), values.narrow(0, 0, held)
                return attention(rotate(q, query_cos, query_sin), turned.unsqueeze(0), seen.unsqueeze(0))

            return attend

        return self.run(latents, timestep, cross, [attend_with(*pair) for pair in cache])

    def _patches(self, latents: Tensor) -> tuple[int, int]:
        return latents.shape[3] // self.config.patch_size[1], latents.shape[4] // self.config.patch_size[2]

    def run(self, latents: Tensor, timestep: Tensor, cross: Sequence[KeyValue], attends: Sequence[Attend]) -> Tensor:
        """Everything but self-attention's view of the sequence, which is `attends`, one per layer. Shapes as above."""
        rows, columns = self._patches(latents)
        x = self.patch_embedding(latents).flatten(3).permute(0, 2, 3, 1)  # [B, F, P, C]
        embedding, modulation = self.condition_embedder.time(timestep)
        for block, pair, attend in zip(self.blocks, cross, attends, strict=True):
            x = block(x, modulation, pair, attend)
        shift, scale = (self.scale_shift_table.float() + embedding.float().unsqueeze(2)).unsqueeze(2).unbind(-2)
        x = self.proj_out(modulate(self.norm_out, x, shift, scale))
        return self._unpatchify(x, rows, columns)

    def _unpatchify(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """[B, F, P, 4·16] -> [B, 16, F, h, w]; within a patch, channels vary fastest."""
        batch, frames = x.shape[:2]
        _, high, wide = self.config.patch_size
        x = x.view(batch, frames, rows, columns, high, wide, -1).permute(0, 6, 1, 2, 4, 3, 5)
        return x.reshape(batch, -1, frames, rows * high, columns * wide)
