"""Training forms of two modules of the transformer: the same formulas with elementwise work in bf16, not float32.

An eighth off a training step; the flow differs by less than bf16 rounding does. Weights and keys are untouched.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.transformer import Attend, KeyValue, TransformerBlock, attention


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


class LeanNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.rsqrt(norm.square() / x.shape[-1] + self.eps)
        return x * scale.to(x.dtype) * self.weight.to(x.dtype)


def make_lean(module: nn.Module) -> None:
    """Swap the classes of the module's blocks and norms, in place."""
    for part in module.modules():
        if type(part) is TransformerBlock:
            part.__class__ = LeanBlock
        elif type(part) is nn.RMSNorm:
            part.__class__ = LeanNorm
