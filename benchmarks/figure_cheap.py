"""What a FedPTR round costs in FedAvg rounds with gradient matching, as the recipe `matching` has it for few rounds.

As in figure_fedptr.py: ten clients, 50,000 images, width 128, batch 500, everyone selected, put together from rounds of
two clients with four batches each, of which there are 12.5 in a whole round:

    A  FedAvg      B  with the pull towards a projected model      P  B with projection      M  P with matching

FedPTR-S takes 12.5·B + (P − B) + (M − P)/p, if it matches every p rounds. Ten clients of FedPTR match two at a time, so
it has the second and the third term five times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from bench_results import Goal, Row, make_row
from figure_fedptr import BATCHES, CLIENTS, EARLY, IMAGES, PAIR, Method, make_stored_images
from our_side import endless_rounds, make_fast_task
from scale import Scale
from timing import quartiles, time_in_turns

from fedptr.core.run import Run
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.fedptr import FedPTR
from fedptr.methods.fedptr_s import FedPTRS

CHEAP: dict[str, Any] = {
    "matching": "gradient", "H": 20, "ipc": 3, "dsa": False, "lr_img": "auto", "projection_lr": "beta",
}  # fmt: skip
METHODS: list[tuple[Method, float]] = [(FedPTRS(mtt_every=2, **CHEAP), 1.1), (FedPTR(mtt_every=4, **CHEAP), 1.5)]
NEVER = 10**6
ALWAYS = 1e9  # a loss that no set has: it is projected with, however well it matches


def measure_rows(scale: Scale) -> Iterator[Row]:
    for method, goal in METHODS:
        times = time_in_turns(round_parts(method, scale(128), scale(500)), min(scale.repeats, 3))
        turns = [dict(zip(times, taken, strict=True)) for taken in zip(*times.values(), strict=True)]
        values = [cost_in_fedavg_rounds(method, turn, IMAGES / (PAIR * BATCHES * 500)) for turn in turns]
        title = f"{method.name} round, gradient matching, H=20, 3 images per class, every {method.mtt_every} rounds"
        took = ", ".join(f"{name} {quartiles(times[name]).median:.2f} s" for name in "ABPM")
        yield make_row(title, "our FedAvg round, put together", values, "×", Goal("≤", goal), times, took)


def cost_in_fedavg_rounds(method: Method, t: dict[str, float], pairs: float) -> float:
    """The cost from the seconds of one turn; a round has `pairs` times the work of A."""
    assert isinstance(method.mtt_every, int)
    extra = t["P"] - t["B"] + (t["M"] - t["P"]) / method.mtt_every
    return (pairs * t["B"] + extra * (CLIENTS / PAIR if isinstance(method, FedPTR) else 1)) / (pairs * t["A"])


def round_parts(method: Method, width: int, batch: int) -> dict[str, Callable[[], Run]]:
    """A, B, P and M as functions: the round after one in which a set was learned."""
    task, clients = make_fast_task(width), make_stored_images(PAIR * BATCHES * batch, PAIR)
    matching = replace(method, mtt_every=1, mtt_max_loss=ALWAYS, **EARLY)
    learned = endless_rounds(matching, task, clients, batch)
    next(learned)
    start = next(learned)

    def third_round(method: FedAvg, start: Run | None) -> Callable[[], Run]:
        return lambda: next(endless_rounds(method, task, clients, batch, start))

    return {
        "A": third_round(FedAvg(), None),
        "B": third_round(replace(matching, mtt_every=NEVER, K=0), start),
        "P": third_round(replace(matching, mtt_every=NEVER), start),
        "M": third_round(matching, start),
    }
