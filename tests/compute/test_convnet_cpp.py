"""The ConvNet in C++ against the plain task, which is the oracle."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from wait_until import PATIENCE

from fedptr.compute import compiler as compiler_module
from fedptr.compute import cpp_extension, malloc
from fedptr.compute.blocks import BlockedTask
from fedptr.compute.choose import say_once
from fedptr.compute.compiler import UnavailableError
from fedptr.compute.convnet_cpp import ConvNetCppTask, is_supported
from fedptr.compute.cpp_extension import load_library
from fedptr.core.federation import federate
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.methods.ptr import by_trajectory
from fedptr.methods.ptr.auxiliary import Auxiliary, MatchingSettings, draw_steps
from fedptr.methods.ptr.by_trajectory import meta_gradient
from fedptr.models.networks import MLP, ConvNet
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.plan import check_plan
from fedptr.types import Batch

pytestmark = pytest.mark.skipif(not any(map(shutil.which, compiler_module.COMPILERS)), reason="no C++ compiler here")

Kind = tuple[tuple[int, int, int], int, int, int]  # shape, classes, width, depth
KINDS: dict[str, Kind] = {
    "the paper's": ((3, 32, 32), 10, 32, 3),
    "one channel, padding 3": ((1, 28, 28), 10, 16, 3),
    "not square": ((2, 16, 24), 5, 8, 3),
    "one layer": ((3, 16, 16), 3, 24, 1),
    "deep, many classes": ((3, 32, 32), 100, 8, 4),
    "digits, the paper's depth": ((1, 8, 8), 10, 16, 3),  # 12, 6, 3: a row without its pair
    "10, 5, 2": ((3, 10, 10), 4, 8, 3),
    "odd again and again": ((3, 14, 30), 3, 24, 3),
    "odd from the start": ((1, 9, 27), 5, 8, 2),
}
SIDES = range(8, 65, 2)


def make(kind: Kind, dtype: torch.dtype) -> Classification:
    shape, classes, width, depth = kind
    torch.manual_seed(0)
    return Classification(ConvNet(shape, classes, width, depth).to(dtype), shape, classes)


def fast(plain: Classification, **options: Any) -> ConvNetCppTask:
    return ConvNetCppTask(plain.model, plain.shape, plain.classes, **{"block": 4, **options})


def work(plain: Classification, n: int) -> tuple[Tensor, Batch, Tensor]:
    """Parameters off the initial ones (all biases and gains are different there), images, and a direction."""
    g = torch.Generator().manual_seed(n)
    w = plain.init()
    w = w + 0.1 * torch.randn(len(w), generator=g, dtype=w.dtype)
    x = torch.randn(n, *plain.shape, generator=g, dtype=w.dtype)
    return w, Batch(x, torch.randint(plain.classes, (n,), generator=g)), torch.randn(len(w), generator=g, dtype=w.dtype)


def off(got: Tensor | None, expected: Tensor | None) -> float:
    assert got is not None
    assert expected is not None
    assert got.shape == expected.shape
    return float((got - expected).norm() / expected.norm())


@pytest.mark.parametrize("n", [1, 3, 11])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_it_computes_what_the_plain_task_does(kind: Kind, n: int) -> None:
    plain = make(kind, torch.float64)
    task = fast(plain, threads=2, chunk=3)
    w, batch, a = work(plain, n)
    assert all(off(x, y) < 1e-12 for x, y in zip(task.grad(w, batch), plain.grad(w, batch), strict=True))
    assert all(
        off(x, y) < 1e-11 for x, y in zip(task.adjoint(w, batch, a)[:3], plain.adjoint(w, batch, a)[:3], strict=True)
    )
    data = Samples(batch.x, batch.y)
    assert task.evaluate(w, data) == pytest.approx(plain.evaluate(w, data), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_so_it_does_with_a_further_loss_of_the_features(kind: Kind) -> None:
    plain = make(kind, torch.float64)
    task = fast(plain, threads=2)
    w, batch, _ = work(plain, 11)

    def extra(z: Tensor, x: Tensor) -> Tensor:
        return z.square().sum(1) * x.flatten(1).mean(1)

    ours, theirs = (t.grad_with_extra(w, batch, extra) for t in (task, plain))
    assert all(off(x, y) < 1e-12 for x, y in zip(ours, theirs, strict=True))
    assert off(ours[1], plain.loss(w, batch)) < 1e-12, "the loss alone"
    assert off(task.features(w, batch.x), plain.features(w, batch.x)) < 1e-12


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_it_rounds_no_worse_than_pytorch(kind: Kind) -> None:
    exact, plain = make(kind, torch.float64), make(kind, torch.float32)
    task = fast(plain)
    w, batch, a = work(plain, 24)
    wide = w.double(), Batch(batch.x.double(), batch.y), a.double()
    for mine, theirs, true in [
        (task.grad(w, batch)[0], plain.grad(w, batch)[0], exact.grad(wide[0], wide[1])[0]),
        *zip(task.adjoint(w, batch, a)[1:3], plain.adjoint(w, batch, a)[1:3], exact.adjoint(*wide)[1:3], strict=True),
    ]:
        assert mine is not None
        assert theirs is not None
        assert off(mine.double(), true) < 2 * off(theirs.double(), true)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("channels", "width"), [(1, 8), (3, 24)])
def test_every_even_size(side: int, channels: int, width: int) -> None:
    """Down to the last row or column that pooling drops, which is still a part of the norm's means."""
    plain = make(((channels, side, 72 - side), 3, width, 3), torch.float64)
    task = fast(plain)
    w, batch, a = work(plain, 2)
    left = batch._replace(room=task.room(2))
    assert all(off(x, y) < 1e-11 for x, y in zip(task.grad(w, left), plain.grad(w, batch), strict=True))
    exact = plain.adjoint(w, batch, a)
    for given in (batch, left):
        assert all(off(x, y) < 1e-10 for x, y in zip(task.adjoint(w, given, a)[:3], exact[:3], strict=True))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_derivatives_are_those_of_finite_differences(kind: Kind) -> None:
    """Of the loss and of the gradient, along the direction itself and along others; so near that no ReLU switches."""
    plain = make(kind, torch.float64)
    task = fast(plain)
    w, batch, a = work(plain, 4)
    h, g = 1e-8, torch.Generator().manual_seed(5)
    v, vx = (torch.randn(t.shape, generator=g, dtype=torch.float64) for t in (w, batch.x))

    def loss(w: Tensor) -> float:
        return float(task.grad(w, batch)[1])

    def along(w: Tensor, x: Tensor) -> float:
        return float(task.grad(w, batch._replace(x=x))[0] @ a)

    gradient, _ = task.grad(w, batch)
    slope, by_x, by_w, _ = task.adjoint(w, batch, a)
    assert by_w is not None
    assert (loss(w + h * v) - loss(w - h * v)) / (2 * h) == pytest.approx(float(gradient @ v), rel=1e-5)
    assert (loss(w + h * a) - loss(w - h * a)) / (2 * h) == pytest.approx(float(slope), rel=1e-5)
    by_hand = (along(w + h * v, batch.x) - along(w - h * v, batch.x)) / (2 * h)
    assert by_hand == pytest.approx(float(by_w @ v), rel=1e-4)
    by_hand = (along(w, batch.x + h * vx) - along(w, batch.x - h * vx)) / (2 * h)
    assert by_hand == pytest.approx(float((by_x * vx).sum()), rel=1e-4)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_so_it_does_with_soft_labels(kind: Kind) -> None:
    """A number for every class, which need not be a probability; and derivatives by these."""
    plain = make(kind, torch.float64)
    task, blocked = fast(plain, threads=2), BlockedTask(plain.model, plain.shape, plain.classes, block=4)
    w, batch, a = work(plain, 11)
    soft = batch._replace(y=torch.randn(11, plain.classes, generator=torch.Generator().manual_seed(5)).to(w))
    left = soft._replace(room=task.room(11))
    theirs = plain.adjoint(w, soft, a, by_y=True)
    for ours in (task, blocked):
        assert all(off(x, y) < 1e-12 for x, y in zip(ours.grad(w, soft), plain.grad(w, soft), strict=True))
        assert all(off(x, y) < 1e-11 for x, y in zip(ours.adjoint(w, soft, a, by_y=True), theirs, strict=True))
        assert ours.adjoint(w, soft, a).by_y is None
    task.grad(w, left)
    assert all(off(x, y) < 1e-11 for x, y in zip(task.adjoint(w, left, a, by_y=True), theirs, strict=True))
    hard = torch.nn.functional.one_hot(batch.y, plain.classes).to(w)
    assert off(task.grad(w, batch._replace(y=hard))[0], task.grad(w, batch)[0]) < 1e-14


def test_every_part_of_the_gradient_is_right() -> None:
    """By layer, as a small layer could hide in the norm of the whole; biases in front of a norm have none."""
    plain = make(KINDS["the paper's"], torch.float64)
    w, batch, _ = work(plain, 7)
    g, expected = fast(plain).grad(w, batch)[0], plain.grad(w, batch)[0]
    for layer in plain.layers:
        mine, theirs = g[layer.start : layer.stop], expected[layer.start : layer.stop]
        if layer.name in ("0.bias", "4.bias", "8.bias"):
            assert not mine.any()
            assert theirs.abs().max() < 1e-15
        else:
            assert off(mine, theirs) < 1e-12, layer.name


def test_threads_do_not_change_a_bit() -> None:
    plain = make(KINDS["the paper's"], torch.float32)
    one, three = fast(plain, threads=1), fast(plain, threads=3)
    w, batch, a = work(plain, 50)
    for _ in range(5):
        assert all(map(torch.equal, one.grad(w, batch), three.grad(w, batch)))
        for x, y in zip(one.adjoint(w, batch, a)[:3], three.adjoint(w, batch, a)[:3], strict=True):
            assert torch.equal(x, y)  # type: ignore[arg-type]
    turned = batch._replace(x=batch.x.contiguous(memory_format=torch.channels_last))
    assert torch.equal(one.grad(w, turned)[0], one.grad(w, batch)[0]), "however the images lie in memory"
    assert one.adjoint(w, batch, a, by_w=False).by_w is None


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_a_gradient_left_spares_the_adjoint_work_and_changes_nothing(kind: Kind, dtype: torch.dtype) -> None:
    plain = make(kind, dtype)
    task = fast(plain, threads=2)
    w, batch, a = work(plain, 11)
    left = batch._replace(room=task.room(11))
    if left.room is None:
        assert kind == KINDS["one layer"], "there only the first layer, which is cheap, could be kept"
        return
    left.room.fill_(math.nan)
    assert all(map(torch.equal, task.grad(w, left), task.grad(w, batch)))
    assert left.room.isfinite().all(), "all of it is used"
    before = left.room.clone()
    few = {torch.float32: 1e-5, torch.float64: 1e-13}[dtype]
    for mine, theirs in zip(task.adjoint(w, left, a)[:3], task.adjoint(w, batch, a)[:3], strict=True):
        assert off(mine, theirs) < few
    assert torch.equal(left.room, before), "it may be used again"
    left.room.mul_(1.5)
    assert off(task.adjoint(w, left, a).by_w, task.adjoint(w, batch, a).by_w) > 0.01, "it is really used"


@pytest.mark.parametrize("R", [3, 20])
def test_matching_with_and_without_room(R: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with room for some steps only, and with minibatches of different sizes."""
    plain = make(KINDS["not square"], torch.float64)
    task = fast(plain)
    w, batch, a = work(plain, 7)
    aux = Auxiliary(batch.x, batch.y, torch.tensor(0.05).double(), torch.zeros_like(batch.x), torch.tensor(0.0))
    how = MatchingSettings(H=1, R=R, lr_img=1.0, lr_beta=1e-3, momentum=0.5, batch=3, dsa=True)
    steps = draw_steps(how, 7, plain.shape, torch.Generator().manual_seed(1), torch.Generator().manual_seed(2))
    L, gX, gbeta, _ = meta_gradient(plain, w, w + 0.01 * a, aux, steps)
    one = task.room(3)
    assert one is not None
    for bytes_ in (0, 2 * one.nbytes, 1e9):
        monkeypatch.setattr(by_trajectory, "ROOM", bytes_)
        got = meta_gradient(task, w, w + 0.01 * a, aux, steps)
        assert pytest.approx(L, rel=1e-11) == got[0]
        assert off(got[1], gX) < 1e-9
        assert off(got[2], gbeta) < 1e-9


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_a_number_does_not_vanish(bad: float) -> None:
    plain = make(KINDS["the paper's"], torch.float32)
    task = fast(plain)
    w, batch, a = work(plain, 5)
    batch.x[2, 1, 3, 3] = bad
    assert not task.grad(w, batch)[1].isfinite()
    assert not task.grad(w, batch)[0].isfinite().all()
    assert not task.adjoint(w, batch, a).along.isfinite()
    w[0] = bad
    assert not math.isfinite(task.evaluate(w, Samples(batch.x, batch.y))["loss"])


@pytest.mark.parametrize("label", [-1, 10, 2**40])
def test_a_label_out_of_bounds_is_refused(label: int) -> None:
    plain = make(KINDS["the paper's"], torch.float32)
    w, batch, a = work(plain, 6)
    batch.y[5] = label
    with pytest.raises(IndexError, match="out of bounds"):
        fast(plain, threads=2).grad(w, batch)
    with pytest.raises(IndexError, match="out of bounds"):
        fast(plain).adjoint(w, batch, a)


def test_numbers_of_another_kind_are_refused() -> None:
    plain = make(KINDS["the paper's"], torch.float32)
    w, batch, a = work(plain, 6)
    task = fast(plain)
    with pytest.raises(TypeError, match="float64"):
        task.grad(w.double(), batch)
    with pytest.raises(TypeError, match="float64"):
        task.grad(w, batch._replace(x=batch.x.double()))
    with pytest.raises(TypeError, match="float64"):
        task.adjoint(w, batch, a.double())


def test_which_models_it_is_for() -> None:
    def asked(shape: tuple[int, int, int], width: int, depth: int = 3) -> bool:
        return is_supported(Classification(ConvNet(shape, 10, width, depth), shape, 10))

    assert asked((3, 32, 32), 128)
    assert asked((1, 28, 28), 32)
    assert asked((3, 64, 64), 128, 4)
    assert asked((1, 8, 8), 16)
    assert asked((3, 33, 47), 8)
    assert not asked((3, 32, 32), 12), "channels come in eights"
    changed = ConvNet((3, 32, 32), 10, 8)
    changed[1].eps = 1e-3
    assert not is_supported(Classification(changed, (3, 32, 32), 10)), "it is not what its name says"
    assert not is_supported(Classification(MLP((1, 8, 8), 10), (1, 8, 8), 10))
    assert not is_supported(Classification(ConvNet((3, 32, 32), 10, 8).half(), (3, 32, 32), 10))


def plan(**machine: Any) -> Any:
    tables = {
        "run": {"rounds": 2},
        "model": {"width": 8, "depth": 2},
        "data": {"subset": 100},
        "split": {"clients": 3},
        "machine": {"threads": 1, **machine},
        "method": {"name": "fedptr-s", "H": 1, "R": 2, "ipc": 1, "m": 1},
    }
    return check_plan(tables)


@pytest.fixture
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(malloc, "keep_freed_memory", lambda: False)  # the tests' own process is left alone
    threads = torch.get_num_threads()
    load_library.cache_clear()
    say_once.cache_clear()
    yield
    load_library.cache_clear()
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_as_it_was")
def test_a_run_is_the_same_up_to_rounding() -> None:
    ends = {}
    for compile in ("on", "off"):
        p = plan(compile=compile)
        e = prepare_experiment(p)
        *_, run = federate(p.method, e.task, e.clients, e.test, p.run, p.local)
        ends[e.task.how] = run.w
    assert set(ends) == {"winograd", "blocks"}
    assert off(ends["winograd"], ends["blocks"]) < 1e-5


@pytest.mark.usefixtures("_as_it_was")
@pytest.mark.parametrize(
    ("compiler", "reason"),
    [("false", "the compiler failed"), ("/nowhere/c++", "No such file"), (None, "there is no C++ compiler")],
)
def test_without_a_compiler_it_goes_on_without(
    compiler: str | None,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", compiler) if compiler else monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compiler_module, "COMPILERS", ())
    monkeypatch.setattr(cpp_extension, "INSTALLED", tmp_path)
    p = plan(compile="auto")
    monkeypatch.setattr("fedptr.compute.choose.SHORT", 0.0)
    assert prepare_experiment(p).task.how == "blocks"
    said = capsys.readouterr().err
    assert said.count("convnet.cpp is not used (") == 1
    assert reason in said
    assert "Traceback" not in said
    assert not list(tmp_path.glob("*.so"))


@pytest.mark.usefixtures("_as_it_was")
def test_what_does_not_fit_falls_back_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    tables = plan(compile="on").tables()
    narrow = check_plan({**tables, "model": {"width": 12, "depth": 2}})
    frozen = check_plan({**tables, "model": {"width": 8, "depth": 2, "freeze": "0.*"}})
    for p in (narrow, narrow, frozen, frozen):
        assert type(prepare_experiment(p).task) is BlockedTask
    said = capsys.readouterr().err
    assert said.count("convnet.cpp is not used") == 2
    assert said.count("not used (the model's width 12 is not a multiple of 8); continuing without it") == 1
    assert said.count("not used (a part of the model is frozen); continuing without it") == 1
    for quiet in ({**tables, "machine": {"compile": "off"}}, {**tables, "model": {"name": "mlp"}}):
        assert type(prepare_experiment(check_plan(quiet)).task) is BlockedTask
    assert "convnet.cpp" not in capsys.readouterr().err


def test_code_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ConvNetCppTask._pack
    monkeypatch.setattr(ConvNetCppTask, "_pack", lambda self, w: 1.1 * right(self, w))
    with pytest.raises(UnavailableError, match="its results differ"):
        fast(make(KINDS["one layer"], torch.float32))


BUILD = (
    "from fedptr.compute.cpp_extension import load_library\n"
    "print(load_library('convnet', 'double').packed_size is not None)"
)


@pytest.mark.slow
def test_several_processes_may_build_it_at_once(tmp_path: Path) -> None:
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in running:
        out, err = process.communicate(timeout=PATIENCE)
        assert out.strip() == "True", err
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".so"], "and nothing is left lying about"
