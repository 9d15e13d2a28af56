"""What one forward costs early and late in a video: python -m tests.benchmarks.window

The cost has to follow what the cache holds, not the room that it has. One transformer block of six heads of 64 with
Wan's feed-forward ratio, blocks of 720 tokens, room for a window of 7 (21 latent frames), eagerly on one thread;
processor time, the best of some runs. Beside it the same forward in a cache with just room enough.
"""

from __future__ import annotations

import time

import torch

from model.config import TransformerConfig
from model.state import ring_view
from model.transformer import CausalWanTransformer

CONFIG = TransformerConfig(6, 64, text_dim=64, ffn_dim=2240, num_layers=1)
LATENT = (24, 40)  # rows and columns
WINDOW, RUNS = 7, 7
BLOCKS = (0, 1, 3, 6, 20)


@torch.no_grad()
def seconds(model: CausalWanTransformer, room: int, block: int) -> float:
    """Of one forward of that block of a video, in a cache with that much room."""
    rows, columns = (side // 2 for side in LATENT)
    shape = (room, 3, rows, columns, CONFIG.num_attention_heads, CONFIG.attention_head_dim)
    cache = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(CONFIG.num_layers)]
    latents, timestep = torch.randn(1, 16, 3, *LATENT), torch.full((1, 3), 500.0)
    cross = model.cross_kv(torch.randn(1, 512, CONFIG.text_dim))
    slot, positions, held = ring_view(torch.tensor(block), 0, room)
    best = float("inf")
    for _ in range(RUNS):
        begin = time.process_time()
        model.step(latents, timestep, cross, cache, slot, positions, int(held))
        best = min(best, time.process_time() - begin)
    return best


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = CausalWanTransformer(CONFIG).eval()
    late = seconds(model, WINDOW, BLOCKS[-1])
    print("| block | room for 7 blocks, seconds | of a late block's | room for just what is there |\n|---|---|---|---|")
    for block in BLOCKS:
        cost, bare = seconds(model, WINDOW, block), seconds(model, min(block + 1, WINDOW), block)
        print(f"| {block} | {cost:.3f} | {cost / late:.2f} | {bare:.3f} |")


if __name__ == "__main__":
    main()
