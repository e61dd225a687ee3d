"""One outer step of matching: its speed, and whether its gradient is the reference's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from bench_results import Goal, Row, make_row
from our_side import MatchingProblem, make_matching_problem, make_plain_task
from plain_references import unrolled_gradient
from scale import Scale
from separate_process import SeparateProcess
from timing import quartiles, ratios_by_turn, time_in_turns
from torch import Tensor

R, IMAGES, SEEDS = 10, 100, 3


def unrolled_step(p: MatchingProblem) -> tuple[float, Tensor, Tensor]:
    """The same step through one graph over all R student steps."""
    X, beta = p.aux.X.detach().requires_grad_(), p.aux.beta.detach().requires_grad_()
    batches = [(step.batch(X, p.aux.y).x, p.aux.y) for step in p.steps]
    return unrolled_gradient(p.task.model, p.start, p.end, beta, batches, X)


def unrolled_work(width: int, images: int, steps: int) -> Callable[[], object]:
    p = make_matching_problem(width, images, steps, make=make_plain_task)

    def work() -> None:
        unrolled_step(p)

    return work


def measure_rows(scale: Scale) -> Iterator[Row]:
    for width, faster in ((scale(32), 3.0), (scale(128), 2.5)):
        name = f"matching outer step, R={R}, {scale(IMAGES)} images, width {width}"
        p = make_matching_problem(width, scale(IMAGES), R)
        with contextlib.closing(SeparateProcess(unrolled_work, width, scale(IMAGES), R)) as theirs:
            times = time_in_turns({"ours": p.solve, "unrolled": theirs}, scale.repeats)
        took = "{:.2f} against {:.2f} s".format(*(quartiles(times[who]).median for who in ("ours", "unrolled")))
        yield make_row(
            name, "unrolled autograd", ratios_by_turn(times, "unrolled", "ours"), "×", Goal("≥", faster), times, took
        )
        yield from measure_gradient_errors(name, width, scale(IMAGES))


def measure_gradient_errors(name: str, width: int, images: int) -> Iterator[Row]:
    """Distance of the gradients in float64, and of each float32 gradient from the float64 reference."""
    double: list[float] = []
    single: dict[str, list[float]] = {"ours": [], "unrolled": []}
    for seed in range(SEEDS):
        p = make_matching_problem(width, images, R, seed, torch.float64)
        _, X, beta = unrolled_step(p)
        _, gX, gbeta = p.solve()
        double.append(max(relative_distance(gX, X), relative_distance(gbeta, beta)))
        p = make_matching_problem(width, images, R, seed)
        single["ours"].append(relative_distance(p.solve()[1], X))
        single["unrolled"].append(relative_distance(unrolled_step(p)[1], X))
    yield make_row(
        f"{name}: gradient, float64", "unrolled autograd", double, "", Goal("≤", 1e-9), note="relative, X and β"
    )
    parts = ratios_by_turn(single, "ours", "unrolled")
    errors = f"relative errors {min(single['ours']):.1e} and {min(single['unrolled']):.1e} at best"
    words = "unrolled autograd's float32 error"
    yield make_row(f"{name}: error in float32", words, parts, "×", Goal("≤", 1), note=errors)


def relative_distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b).norm() / b.norm())
