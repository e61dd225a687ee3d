"""The tangent kernel against closed forms and a wide net; its regression interpolates; mixtures find their means."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedptr.methods.gaussian_mixture import mixture_means, responsibilities
from fedptr.methods.ntk import regress, tangent_kernel


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_without_biases_the_diagonal_is_known(layers: int) -> None:
    x = draw(5, 7)
    found = tangent_kernel(x, x, layers, b2=0.0).diagonal()
    torch.testing.assert_close(found, 2 * (layers + 1) * x.square().sum(1) / 7, rtol=1e-5, atol=0)


def test_one_layer_is_the_arc_cosine_kernel() -> None:
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for angle in (0.3, 1.2, 2.5):
        other = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)
        k = (math.sin(angle) + (math.pi - angle) * math.cos(angle)) / math.pi
        both = k + math.cos(angle) * (math.pi - angle) / math.pi  # W² = 2 and d = 2 cancel
        assert float(tangent_kernel(x, other, layers=1, b2=0.0)) == pytest.approx(both, rel=1e-9)


def test_it_is_symmetric_and_positive() -> None:
    x = draw(20, 5)
    kernel = tangent_kernel(x, x)
    torch.testing.assert_close(kernel, kernel.mT)
    assert float(torch.linalg.eigvalsh(kernel).min()) > 0


def test_a_wide_net_has_nearly_this_kernel() -> None:
    """The mean over nets of ⟨∂f(x), ∂f(x')⟩, with weights of variance W²/fan-in and biases of variance b²."""
    width, layers, d, nets = 512, 2, 4, 10
    x = draw(3, d)
    expected = tangent_kernel(x, x, layers)
    total = torch.zeros(3, 3, dtype=torch.float64)
    for seed in range(nets):
        sizes = [d, *[width] * layers, 1]
        generator, parameters, modules = torch.Generator().manual_seed(seed), {}, list[nn.Module]()
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            modules += [Scaled(a, b), *([nn.ReLU()] if b > 1 else [])]
            parameters[f"{2 * i}.weight"] = torch.randn(b, a, generator=generator, dtype=torch.float64)
            parameters[f"{2 * i}.bias"] = torch.randn(b, generator=generator, dtype=torch.float64)
        net = nn.Sequential(*modules)
        tangents = []
        for row in x:
            own = {name: value.requires_grad_() for name, value in parameters.items()}
            (out,) = functional_call(net, own, (row[None],))
            tangents.append(torch.cat([g.flatten() for g in torch.autograd.grad(out.sum(), list(own.values()))]))
        total += torch.stack(tangents) @ torch.stack(tangents).mT
    torch.testing.assert_close(total / nets, expected, rtol=0.12, atol=0.12)


class Scaled(nn.Linear):
    """A layer whose parameters are standard normal: the variances W²/fan-in and b² are factors."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return math.sqrt(2 / self.in_features) * x @ self.weight.mT + 0.1 * self.bias


def test_a_regression_without_a_ridge_interpolates() -> None:
    x, y = draw(12, 6), draw(12, 3, seed=1)
    torch.testing.assert_close(regress(x, y, x, ridge=1e-12), y, rtol=1e-5, atol=1e-5)
    assert float((regress(x, y, x, ridge=1.0) - y).abs().max()) > 0.1


def test_the_gradient_by_images_agrees_with_finite_differences() -> None:
    X, T, Y = draw(4, 6), draw(7, 6, seed=1), draw(4, 3, seed=2)
    X[1] = X[0] + 1e-3 * X[1]  # two images that are nearly the same

    def loss(X: torch.Tensor) -> torch.Tensor:
        return regress(X, Y, T, ridge=1e-2).square().sum()

    X.requires_grad_()
    (g,) = torch.autograd.grad(loss(X), X)
    h = 1e-6
    for seed in range(4):
        d = draw(4, 6, seed=10 + seed)
        with torch.no_grad():
            measured = float(loss(X + h * d) - loss(X - h * d)) / (2 * h)
        assert float((g * d).sum()) == pytest.approx(measured, rel=1e-5)


def test_a_mixture_finds_its_means() -> None:
    centres = torch.tensor([[5.0, 0.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, 5.0]])
    noise = torch.randn(3, 60, 3, generator=torch.Generator().manual_seed(0))
    x = (centres[:, None] + 0.3 * noise).flatten(0, 1)
    found = [mixture_means(x, 3, torch.Generator().manual_seed(seed)) for seed in range(8)]
    hits = [float(torch.cdist(means, centres).min(0).values.max()) < 0.3 for means in found]
    assert sum(hits) >= 3, "where the starts fall into three clusters, each mean is at a centre"
    one = mixture_means(x, 1, torch.Generator().manual_seed(0))
    torch.testing.assert_close(one, x.mean(0, keepdim=True))


def test_as_many_components_as_samples_are_the_samples() -> None:
    x = draw(4, 3)
    assert torch.equal(mixture_means(x, 9, torch.Generator()), x)


def test_responsibilities_are_probabilities_even_of_twins() -> None:
    x = torch.ones(6, 2, dtype=torch.float64)
    r = responsibilities(x, x[:2], torch.full((2, 2), 1e-12, dtype=torch.float64), torch.tensor([0.5, 0.5]).double())
    torch.testing.assert_close(r.sum(1), torch.ones(6, dtype=torch.float64))
    assert bool(mixture_means(x, 3, torch.Generator().manual_seed(0)).isfinite().all())
