"""The VAE against diffusers' `AutoencoderKLWan`, in float32 on random weights."""

import pytest
import torch
from diffusers import AutoencoderKLWan

from model.vae import WanVae, decoder_caches
from tests.model.pairs import relative_error, vaes

# Five of unequal depth, widths, factors and sizes; `size` is the latent's height and width.
FORMS = {
    "wan 2.1": dict(base_dim=8, z_dim=4, dim_mult=[1, 2, 2, 2], num_res_blocks=2, size=(4, 6)),
    "wan 2.1, its multipliers": dict(base_dim=6, z_dim=6, dim_mult=[1, 2, 4, 4], num_res_blocks=1, size=(3, 2)),
    "wan 2.1, shallow": dict(base_dim=10, z_dim=3, dim_mult=[1, 3, 2], num_res_blocks=1,
                             temperal_downsample=[True, True], size=(5, 4)),
    "wan 2.2": dict(base_dim=8, z_dim=4, dim_mult=[1, 2, 4, 4], num_res_blocks=2, is_residual=True,
                    in_channels=12, out_channels=12, patch_size=2, scale_factor_spatial=16, size=(2, 3)),
    "embedded": dict(base_dim=8, z_dim=4, dim_mult=[1, 2, 2], num_res_blocks=1, is_residual=True,
                     temperal_downsample=[True, True], in_channels=12, out_channels=12, patch_size=2, size=(4, 6)),
}  # fmt: skip


def both(form: str) -> tuple[AutoencoderKLWan, WanVae]:
    return vaes(**{key: value for key, value in FORMS[form].items() if key != "size"})


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_encode(form: str) -> None:
    theirs, ours = both(form)
    height, width = (side * ours.config.spatial_factor for side in FORMS[form]["size"])
    video = torch.rand(1, 3, 1 + 3 * ours.config.temporal_factor, height, width) * 2 - 1
    mean = theirs.encode(video).latent_dist.mean
    assert ours.encode(video).shape == mean.shape
    assert relative_error(ours.encode(video), mean) <= 1e-5
    assert relative_error(ours.encode(video[:, :, :1]), mean[:, :, :1]) <= 1e-5


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_decode_block_by_block_equals_decode_of_the_whole(form: str) -> None:
    theirs, ours = both(form)
    (height, width), factor = FORMS[form]["size"], ours.config.temporal_factor
    latents = torch.randn(1, ours.config.z_dim, 9, height, width)
    whole = theirs.decode(latents).sample
    plan = decoder_caches(ours.config)
    caches = [torch.zeros(1, 2, height * scale, width * scale, channels) for channels, scale in plan]
    frames = []
    for block, part in enumerate(latents.split(3, dim=2)):
        shapes = [cache.shape for cache in caches]
        decoded, caches = ours.decode(part, caches, torch.tensor(block == 0))
        assert [cache.shape for cache in caches] == shapes
        frames.append(decoded[:, :, factor - 1 :] if block == 0 else decoded)
    joined = torch.cat(frames, dim=2)
    assert joined.shape == whole.shape == (1, 3, 1 + 8 * factor, *whole.shape[3:])
    assert relative_error(joined, whole) <= 1e-5
    assert relative_error(ours.decode_clip(latents), whole) <= 1e-5


def test_normalise_is_undone_by_denormalise() -> None:
    _, ours = both("embedded")
    raw = torch.randn(1, 4, 2, 4, 4)
    torch.testing.assert_close(ours.denormalise(ours.normalise(raw)), raw)
    expected = (raw[0, 1, 0, 0, 0] + 0.1) / 1.0
    torch.testing.assert_close(ours.normalise(raw)[0, 1, 0, 0, 0], expected)
