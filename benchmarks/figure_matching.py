"""One outer step of matching: speed, and whether it is the same gradient."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from ours import Problem, plain, problem
from references import unrolled
from results import Goal, Row, row
from scale import Scale
from separate_process import Apart
from timing import interleaved, ratios, spread
from torch import Tensor

R, IMAGES, SEEDS = 10, 100, 3


def reference(p: Problem) -> tuple[float, Tensor, Tensor]:
    """The same step through one graph over all R student steps."""
    X, beta = p.aux.X.detach().requires_grad_(), p.aux.beta.detach().requires_grad_()
    batches = [(step.batch(X, p.aux.y).x, p.aux.y) for step in p.steps]
    return unrolled(p.task.model, p.start, p.end, beta, batches, X)


def graph(width: int, images: int, steps: int) -> Callable[[], object]:
    p = problem(width, images, steps, make=plain)

    def work() -> None:
        reference(p)

    return work


def figures(scale: Scale) -> Iterator[Row]:
    for width, faster in ((scale(32), 3.0), (scale(128), 2.5)):
        name = f"matching outer step, R={R}, {scale(IMAGES)} images, width {width}"
        p = problem(width, scale(IMAGES), R)
        with contextlib.closing(Apart(graph, width, scale(IMAGES), R)) as theirs:
            times = interleaved({"ours": p.solve, "unrolled": theirs}, scale.repeats)
        took = "{:.2f} against {:.2f} s".format(*(spread(times[who]).median for who in ("ours", "unrolled")))
        yield row(name, "unrolled autograd", ratios(times, "unrolled", "ours"), "×", Goal("≥", faster), times, took)
        yield from accuracy(name, width, scale(IMAGES))


def accuracy(name: str, width: int, images: int) -> Iterator[Row]:
    """Distance of the gradients in float64, and of each float32 one from the float64 reference."""
    double: list[float] = []
    single: dict[str, list[float]] = {"ours": [], "unrolled": []}
    for seed in range(SEEDS):
        p = problem(width, images, R, seed, torch.float64)
        _, X, beta = reference(p)
        _, gX, gbeta = p.solve()
        double.append(max(relative(gX, X), relative(gbeta, beta)))
        p = problem(width, images, R, seed)
        single["ours"].append(relative(p.solve()[1], X))
        single["unrolled"].append(relative(reference(p)[1], X))
    yield row(f"{name}: gradient, float64", "unrolled autograd", double, "", Goal("≤", 1e-9), note="relative, X and β")
    parts = ratios(single, "ours", "unrolled")
    errors = f"relative errors {min(single['ours']):.1e} and {min(single['unrolled']):.1e} at best"
    words = "unrolled autograd's float32 error"
    yield row(f"{name}: error in float32", words, parts, "×", Goal("≤", 1), note=errors)


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b).norm() / b.norm())
