"""DSA: the constants of the published code, and that every family is what it says."""

from __future__ import annotations

import math

import pytest
import torch

from fedptr.core.local_training import flip_and_crop
from fedptr.core.randomness import Key
from fedptr.methods.ptr import dsa

N, SIZE = 4000, (32, 32)


def gen(seed: int = 0) -> torch.Generator:
    return Key(seed)("test")


def test_six_families_picked_uniformly() -> None:
    assert [f.__name__ for f in dsa.FAMILIES] == [
        "draw_color", "draw_crop", "draw_cutout", "draw_flip", "draw_scale", "draw_rotation",
    ]  # fmt: skip
    picked = []
    families, g = dsa.FAMILIES, gen()
    try:
        dsa.FAMILIES = tuple(lambda n, s, g, i=i: picked.append(i) or dsa.identity for i in range(6))
        for _ in range(6000):
            dsa.draw_augmentation(1, (3, 8, 8), g)
    finally:
        dsa.FAMILIES = families
    counts = torch.bincount(torch.tensor(picked), minlength=6)
    assert counts.min() > 900
    assert counts.max() < 1100


def test_color_constants() -> None:
    """Brightness adds U(−½, ½); saturation is U(0, 2) about the channel mean, contrast U(½, 3/2) about the image's."""
    x = torch.zeros(N, 3, 2, 2)
    x[:, 0] = 3.0  # channel mean 1 everywhere, so image mean 1: contrast leaves the channel mean alone
    out = dsa.draw_color(N, (2, 2), gen())(x)
    brightness = out.mean((1, 2, 3)) - 1
    assert -0.5 <= float(brightness.min()) < -0.49
    assert 0.49 < float(brightness.max()) <= 0.5
    product = (out[:, 0, 0, 0] - out.mean(1)[:, 0, 0]) / 2  # saturation × contrast
    assert 0 <= float(product.min()) < 0.02
    assert 2.8 < float(product.max()) <= 3.0
    y = torch.zeros(N, 1, 1, 2)
    y[..., 0] = 1.0
    out = dsa.draw_color(N, (1, 2), gen())(y)  # one channel: saturation does nothing, so this is contrast alone
    contrast = (out[..., 0] - out[..., 1]).flatten()
    assert 0.5 <= float(contrast.min()) < 0.51
    assert 1.49 < float(contrast.max()) <= 1.5


@pytest.mark.parametrize(("side", "reach"), [(32, 4), (28, 4), (64, 8), (8, 1)])
def test_crop_shifts_up_to_an_eighth_with_zeros(side: int, reach: int) -> None:
    x = torch.zeros(N, 1, side, side)
    middle = side // 2
    x[:, :, middle, middle] = 1.0
    out = dsa.draw_crop(N, (side, side), gen())(x)
    assert torch.equal(out.sum((1, 2, 3)), torch.ones(N))
    row, column = out[:, 0].flatten(1).argmax(1) // side - middle, out[:, 0].flatten(1).argmax(1) % side - middle
    for shift in (row, column):
        assert int(shift.min()) == -reach
        assert int(shift.max()) == reach
    edge = dsa.draw_crop(N, (side, side), gen())(torch.ones(N, 1, side, side))
    assert set(edge.unique().tolist()) == {0.0, 1.0}


def test_cutout_removes_a_square_of_half_the_side() -> None:
    out = dsa.draw_cutout(N, SIZE, gen())(torch.ones(N, 1, *SIZE))
    removed = (out == 0).sum((1, 2, 3))
    assert int(removed.max()) == 16 * 16
    assert int(removed.min()) == 8 * 8  # a hole centred on a corner is cut off to a quarter
    assert bool((out == 0).flatten(1).any(0).all())  # any pixel can go


def test_flip_is_horizontal_with_probability_one_half() -> None:
    x = torch.arange(4.0).expand(N, 1, 2, 4)
    flipped = dsa.draw_flip(N, (2, 4), gen())(x)[:, 0, 0, 0] == 3
    assert 0.46 < float(flipped.float().mean()) < 0.54


def test_scale_and_rotate_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(dsa, "make_affine", lambda theta: seen.append(theta) or dsa.identity)
    dsa.draw_scale(N, SIZE, gen())
    dsa.draw_rotation(N, SIZE, gen())
    scales, rotations = seen
    for axis in (0, 4):
        assert 1 / 1.2 <= float(scales[:, axis].min()) < 0.84
        assert 1.19 < float(scales[:, axis].max()) <= 1.2
    assert not torch.equal(scales[:, 0], scales[:, 4])
    angles = torch.atan2(rotations[:, 3], rotations[:, 0]) * 180 / math.pi
    assert -15.001 <= float(angles.min()) < -14.9
    assert 14.9 < float(angles.max()) <= 15.001
    torch.testing.assert_close(rotations[:, 1], -rotations[:, 3])


def test_affine_uses_aligned_corners() -> None:
    """The identity map gives the image back exactly only then on the corners under scaling by one."""
    x = torch.randn(2, 3, 8, 8, generator=gen())
    out = dsa.make_affine(torch.tensor([[1.0, 0, 0, 0, 1, 0]] * 2))(x)
    torch.testing.assert_close(out, x, rtol=1e-5, atol=1e-5)
    half = dsa.make_affine(torch.tensor([[0.5, 0, 0, 0, 0.5, 0]]))(x[:1, :, :5, :5])
    torch.testing.assert_close(half[0, :, 0, 0], x[0, :, 1, 1], rtol=1e-5, atol=1e-5)  # corner −0.5 is pixel 1 of 5


@pytest.mark.parametrize("family", dsa.FAMILIES, ids=lambda f: f.__name__)
def test_a_draw_is_applied_the_same_way_every_time_and_is_differentiable(family) -> None:
    x = torch.randn(5, 3, 8, 8, generator=gen(1), dtype=torch.float64, requires_grad=True)
    apply = family(5, (8, 8), gen())
    assert torch.equal(apply(x), apply(x))
    assert torch.autograd.gradcheck(apply, (x,), fast_mode=True)


def test_real_images_flip_and_crop() -> None:
    x = torch.zeros(N, 2, 9, 9)
    x[:, :, 4, 2] = 1.0
    out = flip_and_crop(x, gen())
    where = out[:, 0].flatten(1).argmax(1)
    untouched = (where == 4 * 9 + 2).float().mean()
    flipped = (where == 4 * 9 + 6).float().mean()
    assert 0.22 < float(untouched) < 0.29  # ½·½ and a little more from crops that land in the middle
    assert 0.22 < float(flipped) < 0.29
    assert int((where // 9).min()) == 0
    assert int((where // 9).max()) == 8
    assert torch.equal(out[:, 0], out[:, 1])
    odd = torch.randn(6, 3, 7, 5, generator=gen())
    assert flip_and_crop(odd, gen()).shape == odd.shape
