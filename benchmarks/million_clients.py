"""The unit costs from which docs/scale.md counts: what a client that is known, a visit and a reply cost the server.

    python benchmarks/million_clients.py         prints them; about two minutes

Clients share 4,096 samples, five of which are each one's own, so that memory is that of clients and not of data.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import nn

from fedptr import Classification, Local, Rounds, Samples, federate, methods
from fedptr.core.federation import draw_cohort
from fedptr.core.method import Entry
from fedptr.core.randomness import Key
from fedptr.core.visit import check_reply
from fedptr.runs.summary import used_memory
from fedptr.types import Reply

CLIENTS, COHORT, ROUNDS = 1_000_000, 1000, 6
MODELS = {"the ConvNet, width 32": 24_714, "the ConvNet, width 128": 320_010, "ResNet-18": 11_000_000}
REPLIES = 20


def time_median(work: Callable[[], object], repeats: int = 5) -> float:
    """Seconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return median(times)


def print_cost_of_knowing() -> None:
    """Of clients that nobody visits."""
    rounds, known, before = Rounds(participation=COHORT / CLIENTS), list(range(CLIENTS)), used_memory()
    print(f"to draw a cohort: {time_median(lambda: draw_cohort(known, rounds, Key(0))):.3f} s")
    x = torch.randn(4096, 20)
    everyone = Samples(x, (x[:, 0] > 0).long())
    clients = [everyone.part(torch.arange(5)) for _ in range(CLIENTS)]
    print(f"samples: {(used_memory() - before) / CLIENTS:.0f} bytes a client")
    task, local = Classification(nn.Linear(20, 2), (20,), 2), Local(lr=0.1, batch=5)
    for name in ("fedavg", "scaffold"):
        before, began, times = used_memory(), time.perf_counter(), []
        for _ in federate(methods.make_method(name), task, clients, None, Rounds(ROUNDS, COHORT / CLIENTS), local):
            times.append(time.perf_counter() - began)
            began = time.perf_counter()
        first, more = times[0], (used_memory() - before) / CLIENTS
        print(f"{name}: {first:.1f} s for the first round, then {median(times[1:]):.2f} s; {more:.0f} bytes a client")


def print_cost_of_replies() -> None:
    method = methods.make_method("fedavg")
    for name, numbers in MODELS.items():
        replies, expected = [Reply(i, 100, {"w": torch.randn(numbers)}, 5) for i in range(REPLIES)], Entry((numbers,))
        check = time_median(partial(check_replies, replies, {"w": expected._replace(dtype=torch.float32)})) / REPLIES
        mean = time_median(partial(method.mean, replies)) / REPLIES
        print(f"{name}, {4 * numbers / 1e6:.2f} MB: checked in {1e3 * check:.2f} ms, added in {1e3 * mean:.2f} ms")


def check_replies(replies: list[Reply], expected: dict[str, Entry]) -> None:
    for reply in replies:
        check_reply(reply.state, expected)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print_cost_of_knowing()
    print_cost_of_replies()
