"""The models have the published sizes, can be differentiated twice, and say when an image is too small for them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedptr.core.randomness import Key
from fedptr.errors import UserError
from fedptr.models.networks import MLP, ConvNet, LeNet, ModelPlan, ResNet18, build_model

Shape = tuple[int, int, int]
MNIST, CIFAR, TINY = (1, 28, 28), (3, 32, 32), (3, 64, 64)


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("plan", "shape", "classes", "parameters"),
    [
        (ModelPlan("convnet"), MNIST, 10, 317_706),
        (ModelPlan("convnet"), CIFAR, 10, 320_010),
        (ModelPlan("convnet"), CIFAR, 100, 504_420),
        (ModelPlan("convnet"), TINY, 200, 1_938_120),
        (ModelPlan("convnet", depth=4), TINY, 200, 857_160),
        (ModelPlan("mlp"), CIFAR, 10, 3072 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10),
        (ModelPlan("lenet"), MNIST, 10, 61_706),
        (ModelPlan("lenet"), CIFAR, 10, 62_006),
        (ModelPlan("resnet18"), CIFAR, 10, 11_173_962),
        (ModelPlan("convnet", width=8, depth=1), MNIST, 10, 8 * 9 + 8 + 2 * 8 + 8 * 16 * 16 * 10 + 10),
    ],
)
def test_published_sizes(plan: ModelPlan, shape: Shape, classes: int, parameters: int) -> None:
    model = build_model(plan, shape, classes)
    assert count(model) == parameters
    assert not list(model.buffers()), "statistics would have to be averaged"
    with torch.no_grad():
        assert model(torch.zeros(2, *shape)).shape == (2, classes)


def test_convnet_has_14_tensors_at_depth_3() -> None:
    assert len(list(ConvNet(CIFAR, 10).parameters())) == 14
    assert len(list(ConvNet(TINY, 10, depth=4).parameters())) == 18


def test_grey_images_are_padded_to_32() -> None:
    grey, colour = ConvNet(MNIST, 10, width=4), ConvNet(CIFAR, 10, width=4)
    assert grey[0](torch.zeros(1, *MNIST)).shape[2:] == colour[0](torch.zeros(1, *CIFAR)).shape[2:] == (32, 32)
    assert grey[-1].in_features == colour[-1].in_features == 4 * 4 * 4


def test_instance_norm_makes_convolution_biases_inert() -> None:
    """Why FedPTR guards its adaptive strength: these tensors never move, except by rounding."""
    with Key(0).fixed("test"):
        model, x, y = ConvNet(CIFAR, 10, width=8), torch.randn(6, *CIFAR), torch.arange(6)
    F.cross_entropy(model(x), y).backward()
    size = {name: float(p.grad.norm()) for name, p in model.named_parameters() if p.grad is not None}
    convolutions = ["0", "4", "8"]
    assert len(size) == 14
    assert max(size[f"{n}.bias"] for n in convolutions) < 1e-5 * min(size[f"{n}.weight"] for n in convolutions)


def test_norms_are_per_image() -> None:
    """An image's output does not depend on its neighbours in the batch, nor on training or evaluation."""
    with Key(0).fixed("test"):
        for model in (ConvNet(CIFAR, 10, width=8), ResNet18(CIFAR, 10, width=4)):
            x = torch.randn(3, *CIFAR)
            assert torch.allclose(model.train()(x)[1:2], model.eval()(x[1:2]), atol=1e-5)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (lambda s: ConvNet(s, 3, width=4, depth=2), (1, 8, 8)),
        (lambda s: ConvNet(s, 3, width=4, depth=2), (3, 8, 8)),
        (lambda s: MLP(s, 3, width=6), (1, 4, 4)),
        (lambda s: LeNet(s, 3), (1, 12, 12)),
        (lambda s: ResNet18(s, 3, width=4), (3, 16, 16)),
    ],
    ids=["convnet-grey", "convnet", "mlp", "lenet", "resnet18"],
)
def test_second_order_gradients_are_right(model: object, shape: Shape) -> None:
    """Matching differentiates ⟨∇_w ℓ(w, X), a⟩ by X; checked against a finite difference, in float64."""
    with Key(3).fixed("test"):
        net = model(shape).double()  # type: ignore[operator]
        parameters = list(net.parameters())
        X, y = torch.randn(4, *shape, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
        a = [torch.randn_like(p) for p in parameters]
        direction = torch.randn_like(X)

    def along(X: torch.Tensor) -> torch.Tensor:
        g = torch.autograd.grad(F.cross_entropy(net(X), y), parameters, create_graph=True)
        return torch.stack([(u * v).sum() for u, v in zip(g, a, strict=True)]).sum()

    X.requires_grad_()
    (hX,) = torch.autograd.grad(along(X), X)
    step = 1e-6
    slope = (along(X + step * direction) - along(X - step * direction)).item() / (2 * step)
    assert abs(slope) > 1e-6
    assert float((hX * direction).sum()) == pytest.approx(slope, rel=1e-3)


@pytest.mark.parametrize(
    ("plan", "shape", "words"),
    [
        (ModelPlan("convnet"), (3, 4, 4), "model.depth 3 pools 4×4 images"),
        (ModelPlan("convnet", depth=8), CIFAR, "use fewer blocks"),
        (ModelPlan("convnet"), (3, 32, 4), "32×4"),
        (ModelPlan("lenet"), (1, 8, 8), "at least 12×12, not 8×8"),
        (ModelPlan("lenet"), (1, 11, 11), "at least 12×12"),
        (ModelPlan("mlp", width=2**61), CIFAR, "model mlp cannot be built for 3×32×32 images"),
        (ModelPlan("convnt"), CIFAR, "model.name: convnt is not a model; did you mean convnet"),
        (ModelPlan(""), CIFAR, "model.name: an empty name is not a model"),
    ],
)
def test_what_cannot_be_made_is_said(plan: ModelPlan, shape: Shape, words: str) -> None:
    with pytest.raises(UserError, match=words):
        build_model(plan, shape, 10)


def test_smallest_images() -> None:
    for model, shape in ((LeNet((1, 12, 12), 10), (1, 12, 12)), (ConvNet((3, 8, 8), 10, width=4), (3, 8, 8))):
        assert model(torch.zeros(2, *shape)).shape == (2, 10)


def test_the_seed_decides_the_weights() -> None:
    def weights(seed: int) -> torch.Tensor:
        with Key(seed).fixed("init"):
            return torch.cat([p.flatten() for p in ConvNet(MNIST, 10, width=4).parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_group_norms_have_32_groups_where_they_can() -> None:
    def groups(width: int) -> list[int]:
        norms = (m for m in ResNet18(CIFAR, 10, width).modules() if isinstance(m, torch.nn.GroupNorm))
        return sorted({norm.num_groups for norm in norms})

    assert groups(64) == [32]
    assert groups(12) == [4, 8, 16, 32]  # of 12, 24, 48 and 96 channels
