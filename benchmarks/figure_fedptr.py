"""What a FedPTR round costs in FedAvg rounds: ten clients, 50,000 images, width 128, batch 500, everyone selected.

Such rounds take minutes, so their parts are measured in turns and added up:

    A  FedAvg round of two clients, four batches each       B  the same with the pull towards a projected model
    C  matching with H = 2 on the server                    D  one run of the student, which ends a matching
    E  projection on the server                             F  FedPTR round like A: with H = 2, and projection

An outer step is o = (C − D)/2. FedAvg takes 12.5·A and FedPTR-S 12.5·B + H·o + D + E. Clients may run two at a time;
with H = 2 two of them spend F − B on top of training, so ten spend five times (F − B)·(H·o + D + E)/(2o + D + E).
`--full` also runs the real rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from bench_results import Goal, Row, make_row
from our_side import endless_rounds, make_fast_task, make_site
from scale import Scale
from timing import Times, quartiles, ratios_by_turn, time_in_turns
from workload import make_images

from fedptr.core.federation import Run
from fedptr.core.local_training import Local
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.methods.fedavg import FedAvg
from fedptr.methods.fedptr import FedPTR
from fedptr.methods.fedptr_s import FedPTRS
from fedptr.methods.ptr.auxiliary import Auxiliary, MatchingSettings, draw_steps
from fedptr.methods.ptr.by_trajectory import train_student
from fedptr.methods.ptr.matching import project_model
from fedptr.methods.ptr.trajectory import MTT_LR_IMG

IMAGES, CLIENTS, PAIR, BATCHES, SAMPLED = 50_000, 10, 2, 4, 2
Method = FedPTRS | FedPTR
EARLY: dict[str, Any] = {"m": 1, "warmup": "early"}  # matching already in the second round, at its usual cost


@dataclass(frozen=True)
class MatchingSetting:
    """A way to match, and the goal for the cost of its round in FedAvg rounds."""

    name: str
    server: FedPTRS
    server_goal: float
    client: FedPTR
    client_goal: float
    outer: float | None = None  # outer steps per matching where they are not always H

    def goals(self) -> list[tuple[Method, float]]:
        return [(self.server, self.server_goal), (self.client, self.client_goal)]


SETTINGS = [
    MatchingSetting("the paper's H=20, R=10, 100 images", FedPTRS(), 2.4, FedPTR(), 13),
    # Cheaper; the recipe `tradeoff` measures what such settings cost in accuracy.
    MatchingSetting("S: H=3; clients: H=4, every 4 rounds", FedPTRS(H=3), 1.3, FedPTR(H=4, mtt_every=4), 2.0),
]


def measure_rows(scale: Scale) -> Iterator[Row]:
    exact, *_ = everything = scaled_settings(scale)
    repeats = min(scale.repeats, 3)  # each takes minutes; the parts are the same for every setting
    times = time_in_turns(round_parts(exact, scale(128), scale(500)), repeats)
    turns = [{name: taken[i] for name, taken in times.items()} for i in range(repeats)]
    for setting in everything:
        for method, goal in setting.goals():
            values = [cost_in_fedavg_rounds(method, setting, turn, IMAGES / (PAIR * BATCHES * 500)) for turn in turns]
            title = f"{method.name} round, {setting.name}"
            yield make_row(
                title, "our FedAvg round, put together", values, "×", Goal("≤", goal), times, seconds_by_part(times)
            )
    if scale.full:
        yield from measure_whole_rounds(scale)


def scaled_settings(scale: Scale) -> list[MatchingSetting]:
    if not scale.quick:
        return SETTINGS
    small: dict[str, Any] = {"ipc": 1, "H": 3}
    return [
        replace(
            s, name=f"quick stand-in for {s.name}", server=replace(s.server, **small), client=replace(s.client, **small)
        )
        for s in SETTINGS
    ]


def cost_in_fedavg_rounds(method: Method, setting: MatchingSetting, t: dict[str, float], pairs: float) -> float:
    """The cost from the seconds of one turn; a round has `pairs` times the work of A."""
    A, B, C, D, E, F = (t[name] for name in "ABCDEF")
    o = (C - D) / SAMPLED
    rare = 1 / method.mtt_every if isinstance(method.mtt_every, int) else 0.0  # share of the rounds with matching
    extra = rare * ((setting.outer or method.H) * o + D) + E
    if isinstance(method, FedPTR):
        extra = CLIENTS / PAIR * (F - B) * extra / (SAMPLED * o + D + E)
    return (pairs * B + extra) / (pairs * A)


def seconds_by_part(times: Times) -> str:
    return ", ".join(f"{name} {quartiles(times[name]).median:.2f} s" for name in "ABCDEF")


def round_parts(setting: MatchingSetting, width: int, batch: int) -> dict[str, Callable[[], object]]:
    """A to F as functions."""
    task = make_fast_task(width)
    clients = make_stored_images(PAIR * BATCHES * batch, PAIR)
    server = replace(setting.server, H=SAMPLED, **EARLY)
    client = replace(setting.client, H=SAMPLED, **EARLY)
    methods = {"A": FedAvg(), "B": replace(server, H=0, K=0), "F": client}
    works = {name: second_round(method, task, clients, batch) for name, method in methods.items()}
    warm = next(endless_rounds(server, task, clients, batch)).server
    memory = {**warm, "trail": torch.stack([task.init(), warm["x"]])}
    place = make_site(task, None, Local(batch=batch))
    aux = Auxiliary(**{name: memory[name] for name in Auxiliary._fields})
    how = MatchingSettings(
        SAMPLED, server.R, MTT_LR_IMG, server.lr_beta, server.mtt_momentum, server.aux_batch, server.dsa
    )
    steps = draw_steps(how, len(aux.y), task.shape, place.key("mtt-batch"), place.key("mtt-aug"))
    return {
        **works,
        "C": lambda: server.match(memory, place),
        "D": lambda: train_student(task, memory["trail"][0], aux, steps),
        "E": lambda: project_model(task, memory["x"], aux.X, aux.y, server.K, server.eta, 0.0, server.dsa, place.key),
    }


def second_round(method: FedAvg, task: Classification, clients: list[Samples], batch: int) -> Callable[[], Run]:
    """Runs the first round now, and the second whenever the result is called."""
    first = next(endless_rounds(method, task, clients, batch))
    return lambda: next(endless_rounds(method, task, clients, batch, first))


def measure_whole_rounds(scale: Scale) -> Iterator[Row]:
    task, batch, clients = make_fast_task(scale(128)), scale(500), make_stored_images(scale(IMAGES), CLIENTS)
    for setting in scaled_settings(scale):
        works = {"fedavg": second_round(FedAvg(), task, clients, batch)}
        for method, _ in setting.goals():
            works[method.name] = second_round(replace(method, **EARLY), task, clients, batch)
        times = time_in_turns(works, 1)
        for method, goal in setting.goals():
            always = method.mtt_every == 1
            took = f"{times[method.name][0]:.0f} against {times['fedavg'][0]:.0f} s"
            took += "" if always else "; of the rounds in which it matches"
            yield make_row(
                f"{method.name} round, {setting.name}", "our FedAvg round, whole rounds",
                ratios_by_turn(times, method.name, "fedavg"), "×", Goal("≤", goal) if always else None, times, took,
            )  # fmt: skip


def make_stored_images(n: int, clients: int) -> list[Samples]:
    """Images as datasets store them: in bytes, normalised when they are used."""
    x, y = make_images(n)
    level = torch.full((1, 3, 1, 1), 128.0)
    stored = (x * 40 + 128).clamp(0, 255).to(torch.uint8)
    data = Samples(stored, y, mean=level, std=torch.full_like(level, 40.0))
    return [data.part(rows) for rows in torch.arange(n).chunk(clients)]
