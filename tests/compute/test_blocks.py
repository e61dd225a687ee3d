"""Blocks, threads and compiled code against the plain task, which is the oracle."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedptr.compute import blocks, torch_compile
from fedptr.compute.blocks import BlockedTask, choose_block_size, is_separable
from fedptr.compute.torch_compile import CompiledFunction
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.models import networks
from fedptr.types import Batch

SHAPE, CLASSES = (3, 16, 16), 4
MODELS = {
    "convnet": lambda: networks.ConvNet(SHAPE, CLASSES, width=8, depth=2),
    "mlp": lambda: networks.MLP(SHAPE, CLASSES, width=8),
    "lenet": lambda: networks.LeNet(SHAPE, CLASSES),
    "resnet18": lambda: networks.ResNet18(SHAPE, CLASSES, width=4),
}


def make(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().to(dtype)


def images(n: int, dtype: torch.dtype = torch.float64) -> Batch:
    g = torch.Generator().manual_seed(n)
    return Batch(torch.randn(n, *SHAPE, generator=g, dtype=dtype), torch.randint(CLASSES, (n,), generator=g))


def direction(w: Tensor) -> Tensor:
    return torch.randn(len(w), generator=torch.Generator().manual_seed(1), dtype=w.dtype)


def off(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


@pytest.mark.parametrize("n", [1, 4, 5, 11])
@pytest.mark.parametrize("name", MODELS)
def test_blocks_compute_what_the_whole_batch_does(name: str, n: int) -> None:
    plain = Classification(make(name), SHAPE, CLASSES)
    task = BlockedTask(make(name), SHAPE, CLASSES, block=4, chunk=3, threads=2)
    w, batch = plain.init(), images(n)
    (g, loss), (expected, expected_loss) = task.grad(w, batch), plain.grad(w, batch)
    assert off(g, expected) < 1e-12
    assert off(loss, expected_loss) < 1e-12
    a = direction(w)
    got, wanted = task.adjoint(w, batch, a), plain.adjoint(w, batch, a)
    assert all(x is not None and y is not None and off(x, y) < 1e-10 for x, y in zip(got[:3], wanted[:3], strict=True))
    assert got.by_x.shape == batch.x.shape
    data = Samples(batch.x, batch.y)
    assert task.evaluate(w, data) == pytest.approx(plain.evaluate(w, data), rel=1e-12)


def test_what_nobody_asked_for_is_not_returned() -> None:
    task = BlockedTask(make("mlp"), SHAPE, CLASSES, block=4)
    w = task.init()
    assert task.adjoint(w, images(5), direction(w), by_w=False).by_w is None


@pytest.mark.parametrize("name", MODELS)
def test_threads_do_not_change_a_bit(name: str) -> None:
    one, three = (
        BlockedTask(make(name, torch.float32), SHAPE, CLASSES, block=3, chunk=2, threads=threads) for threads in (1, 3)
    )
    w, batch = one.init(), images(20, torch.float32)
    for _ in range(5):
        assert all(map(torch.equal, one.grad(w, batch), three.grad(w, batch)))
        for x, y in zip(one.adjoint(w, batch, w)[:3], three.adjoint(w, batch, w)[:3], strict=True):
            assert torch.equal(x, y)
        assert one.evaluate(w, Samples(batch.x, batch.y)) == three.evaluate(w, Samples(batch.x, batch.y))


def test_arguments_are_left_alone_and_results_are_new() -> None:
    task = BlockedTask(make("convnet"), SHAPE, CLASSES, block=4)
    w, batch = task.init(), images(9)
    before = w.clone(), batch.x.clone()
    first, _ = task.grad(w, batch)
    kept = first.clone()
    task.grad(w, images(8))
    task.adjoint(w, batch, first)
    assert torch.equal(w, before[0])
    assert torch.equal(batch.x, before[1])
    assert torch.equal(first, kept)


def test_a_failure_in_a_thread_is_a_failure() -> None:
    task = BlockedTask(make("convnet"), SHAPE, CLASSES, block=2, threads=2)
    batch = images(6)
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        task.grad(task.init(), batch._replace(y=torch.tensor([0, 1, 2, 3, 0, CLASSES])))


class Mixing(nn.Module):
    """Its images see each other."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(768, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        out: Tensor = self.linear(x - x.mean(0))
        return out


def test_only_models_whose_images_do_not_see_each_other_are_cut() -> None:
    assert all(is_separable(make(name, torch.float32), SHAPE, CLASSES) for name in MODELS)
    flat = nn.Flatten()
    assert not is_separable(Mixing(), SHAPE, CLASSES)
    assert not is_separable(nn.Sequential(nn.BatchNorm2d(3), flat, nn.Linear(768, CLASSES)), SHAPE, CLASSES)
    assert not is_separable(nn.Sequential(flat, nn.Dropout(0.5), nn.Linear(768, CLASSES)), SHAPE, CLASSES)
    assert not is_separable(nn.Sequential(flat, nn.Linear(3, CLASSES)), SHAPE, CLASSES), "it cannot take these images"


def test_trying_a_model_leaves_it_and_the_random_numbers_alone() -> None:
    model = make("convnet", torch.float32)
    before, state = model.state_dict(), torch.get_rng_state()
    before = {name: value.clone() for name, value in before.items()}
    is_separable(model, SHAPE, CLASSES)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@given(st.floats(1, 1e8), st.lists(st.integers(1, 2000), min_size=1, max_size=3))
def test_blocks_fit(widest: float, batches: list[int]) -> None:
    block = choose_block_size(widest, batches)
    assert 1 <= block <= max(batches)
    assert block == 1 or block * widest <= blocks.CACHE
    assert block == max(batches) or block * widest >= min(blocks.LEAST, blocks.CACHE / 2), "no smaller than need be"


needs_compiler = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler here")


@pytest.fixture(scope="module")
def fast() -> tuple[BlockedTask, BlockedTask, Classification]:
    """Compiled once for both numbers of threads, in double precision, with the plain task."""
    one, two = (
        BlockedTask(make("convnet"), SHAPE, CLASSES, block=4, threads=threads, compiled=True) for threads in (1, 2)
    )
    return one, two, Classification(make("convnet"), SHAPE, CLASSES)


@needs_compiler
@pytest.mark.slow
@pytest.mark.xdist_group("compiled")  # so that it is compiled once, not by every worker
@pytest.mark.parametrize("n", [4, 7, 12])
def test_compiled_code_computes_what_the_plain_task_does(
    fast: tuple[BlockedTask, BlockedTask, Classification], n: int
) -> None:
    one, two, plain = fast
    w, batch = plain.init(), images(n)
    a = direction(w)
    for task in (one, two):
        assert off(task.grad(w, batch)[0], plain.grad(w, batch)[0]) < 1e-9
        for got, expected in zip(task.adjoint(w, batch, a)[:3], plain.adjoint(w, batch, a)[:3], strict=True):
            assert off(got, expected) < 1e-9
    assert all(map(torch.equal, one.grad(w, batch), two.grad(w, batch)))
    assert all(map(torch.equal, one.adjoint(w, batch, a)[:3], two.adjoint(w, batch, a)[:3]))
    turned = batch._replace(x=batch.x.contiguous(memory_format=torch.channels_last))
    assert torch.equal(one.grad(w, turned)[0], one.grad(w, batch)[0]), "however the images lie in memory"
    assert one._grad.fast is not None, "it was really compiled"
    assert one._adjoint.fast is not None
    assert one._grad is two._grad, "models that are built alike share their code"


def broken() -> tuple[Tensor, ...]:
    raise RuntimeError("no compiler\nand a long story")


@pytest.mark.parametrize("fast", [lambda x: broken(), lambda x: (3 * x,), lambda x: (x, x)])
def test_what_does_not_compile_goes_on_without(
    fast: torch_compile.Function, capsys: pytest.CaptureFixture[str]
) -> None:
    f = CompiledFunction(lambda x: (x + 1,), lambda: fast, "the example")
    for value in (1.0, 5.0):
        (got,) = f(torch.tensor(value))
        assert got == value + 1
    said = capsys.readouterr().err
    assert said.count("the example is not compiled (") == 1
    assert "long story" not in said


def test_a_failure_of_the_function_itself_is_not_the_compilers() -> None:
    f = CompiledFunction(lambda x: broken(), lambda: lambda x: (x,), "the example")
    with pytest.raises(RuntimeError, match="no compiler"):
        f(torch.ones(1))


KEEP = "from fedptr.compute import malloc; print(malloc.keep_freed_memory())"


def test_memory_is_kept_unless_the_user_has_own_settings() -> None:
    def asked(**env: str) -> str:
        run = subprocess.run([sys.executable, "-c", KEEP], env=env, capture_output=True, text=True, check=True)
        return run.stdout.strip()

    expected = str(platform.libc_ver()[0] == "glibc")
    assert asked() == expected
    assert asked(MALLOC_ARENA_MAX="2") == "False"
    assert asked(GLIBC_TUNABLES="glibc.malloc.arena_max=2") == "False"
