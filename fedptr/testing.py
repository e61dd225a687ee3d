"""The laws that every method keeps, for a method of your own: in a test, or at a prompt.

>>> from fedptr.methods import FedProx
>>> from fedptr.testing import check_method
>>> check_method(FedProx)
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedptr.atomic_files import read_tensors, write_tensors
from fedptr.core.client_states import ClientStates
from fedptr.core.federation import Rounds, Run, federate
from fedptr.core.local_training import Local
from fedptr.core.method import Method, Site
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.core.visit import Request, VisitCohort, VisitResults, visit_client
from fedptr.errors import UserError
from fedptr.methods import check_class
from fedptr.types import State

SHAPE, CLASSES, SIZES = (1, 4, 4), 3, (7, 5, 9, 12)
LOCAL = Local(lr=0.05, batch=4)
ROUNDS, STOPS = 7, (2, 5)
SMALL = 16  # numbers that a state or a message may hold beside models: counters, flags
HOOKS = (
    "server_init", "client_init", "ask", "answer", "learn", "broadcast", "message", "prepare", "train", "start", "pull",
    "gradient", "reply", "personal", "aggregate",
)  # fmt: skip


def check_method(method: type[Method] | Method) -> None:
    """Raises an AssertionError that says in one sentence which law the method breaks.

    A class is checked with its default settings. Give an object for others, such as a cheaper matching. The laws:

    1. The class declares what it must, and its settings have meanings.
    2. A hook changes none of its arguments, nor the clients' data.
    3. Randomness comes from `site.key`: other global generators make no difference, and are left alone.
    4. A run that stops and is resumed from its saved states ends with the same bits.
    5. Engines agree: clients may come in any order, and messages and states travel as bytes.
    6. What is sent and kept is finite, and of the size that `sent` and `cost` declare.
    """
    made = method() if isinstance(method, type) else method
    check_declarations(type(made))
    check_purity(made)
    check_randomness(made)
    runs = run_rounds(made)
    check_sizes(made, runs)
    check_resume(made, runs)
    check_engines(made, runs)


def small_federation(linear: bool = False) -> tuple[Classification, list[Samples]]:
    """Four clients, each short of a class, whose numbers of local steps differ; and a small, or a linear, model."""
    with Key(1).fixed("world"):
        layers = [nn.Linear(16, CLASSES)] if linear else [nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, CLASSES)]
        model = nn.Sequential(nn.Flatten(), *layers)
        centres = torch.randn(CLASSES, *SHAPE)
        clients = []
        for i, m in enumerate(SIZES):
            y = (torch.randint(2, (m,)) + i) % CLASSES
            clients.append(Samples(centres[y] + torch.randn(m, *SHAPE), y))
        return Classification(model, SHAPE, CLASSES), clients


def run_rounds(method: Method, start: Run | None = None, visits: VisitCohort | None = None) -> list[Run]:
    """All rounds, with half of the clients where the method allows that."""
    task, clients = small_federation(method.needs_linear)
    rounds = Rounds(rounds=ROUNDS, participation=1.0 if method.everyone else 0.5)
    try:
        asked = (method, task, clients, None, rounds, LOCAL)
        return list(federate(*asked, start=start, visits=visits, client_tests=clients))
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{method.name} does not run: {error}") from error


def check_declarations(method: type[Method]) -> None:
    try:
        check_class(getattr(method, "alone", method), method.__qualname__)
    except UserError as error:
        raise AssertionError(str(error)) from None
    for field in fields(method):
        assert "doc" in field.metadata, (
            f"{method.__qualname__}.{field.name} is declared without `setting(default, meaning, range)`"
        )


def check_purity(method: Method) -> None:
    """Every hook is called as in a run, with its arguments compared before and after."""
    settings = {field.name: getattr(method, field.name) for field in fields(method)}
    watched = type(method.__class__.__name__, (type(method),), {name: watch_hook(method, name) for name in HOOKS})
    run_rounds(watched(**settings))
    after = {field.name: getattr(method, field.name) for field in fields(method)}
    assert after == settings, f"{method.name} changed its own settings during a run"


def watch_hook(method: Method, name: str) -> Callable[..., Any]:
    """The hook, with a check that it leaves its arguments alone and returns tensors."""
    hook = getattr(type(method), name)
    names = list(inspect.signature(hook).parameters)[1:]

    @functools.wraps(hook)
    def watched(self: Method, *args: Any) -> Any:
        before = [copy_tensors(arg) for arg in args]
        result = hook(self, *args)
        for argument, was, arg in zip(names, before, args, strict=True):
            same = is_equal(was, copy_tensors(arg))
            assert same, f"{method.name}: {name} changed its argument {argument!r}; return a new one instead"
        for part in result if isinstance(result, tuple) else (result,):
            for entry, value in part.items() if isinstance(part, dict) else ():
                kind = type(value).__name__
                assert isinstance(value, Tensor), f"{method.name}: {name} returns {entry!r}, a {kind} and no tensor"
        return result

    return watched


def check_randomness(method: Method) -> None:
    with seeded_globals(1):
        first = run_rounds(method)[-1]
    with seeded_globals(2) as untouched:
        second = run_rounds(method)[-1]
        assert untouched(), f"{method.name} draws from a global generator; draw from site.key('purpose') instead"
    assert is_same_run(first, second), (
        f"{method.name} gives two results from one seed; let all of its randomness come from site.key('purpose'), and "
        "keep nothing outside of its states"
    )


@contextmanager
def seeded_globals(seed: int) -> Iterator[Callable[[], bool]]:
    """The global generators at some place, and as they were afterwards; yields whether they still are at that place."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    place = torch.get_rng_state(), str(np.random.get_state()), random.getstate()

    def untouched() -> bool:
        here = str(np.random.get_state()), random.getstate()
        return torch.equal(torch.get_rng_state(), place[0]) and here == place[1:]

    try:
        yield untouched
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def check_sizes(method: Method, runs: Sequence[Run]) -> None:
    """What is sent is as much as `cost` says once the method is warm, and what is kept is no more."""
    model = len(runs[-1].w)
    for run in runs:
        for who, state in (("the server", run.server), *((f"client {i}", run.clients[i]) for i in run.clients)):
            for name, value in state.items():
                assert bool(value.isfinite().all()), f"{method.name}: {who} keeps {name!r}, which is not finite"
    task, _ = small_federation(method.needs_linear)
    entries = [entry.up_to(max(SIZES)) for entry in (*method.sends(task).values(), *method.answers(task).values())]
    up = sum(math.prod(entry.shape) for entry in entries) / model
    fewer = any(entry.fewer for entry in entries)
    for way, declared in (("down", method.cost.down), ("up", up)):
        sent = max(run.record[f"bytes_{way}"] / len(run.record["cohort"]) for run in runs) / (model * 4)
        if way == "up" and not sent and type(method).silent is not Method.silent:
            continue  # all of these rounds were silent; what is sent in others is checked with every reply
        low = -declared if way == "up" and fewer else 0
        assert low <= sent - declared <= SMALL / model, (
            f"{method.name} sends {sent:g} model sizes {way}, and declares {declared:g}"
        )
    if not method.cost.trail and not method.cost.auxiliary and not method.sends_sets:
        kept = {
            "client": max(count_numbers(state) for state in runs[-1].clients.values()),
            "server": count_numbers(runs[-1].server) - model,
        }
        clients = len(SIZES)
        allowed = {
            "client": method.cost.client * model + method.cost.duals * max(SIZES) * CLASSES,
            "server": (method.cost.server + method.cost.each * clients) * model
            + (clients**2 if method.cost.each else 0),
        }
        for who, found in kept.items():
            assert found <= allowed[who] + SMALL, (
                f"{method.name}: the {who} keeps {found / model:.2g} model sizes, and its cost declares "
                f"{allowed[who] / model:.2g}"
            )


def count_numbers(state: State) -> int:
    return sum(value.numel() for value in state.values())


def check_resume(method: Method, runs: Sequence[Run]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for stop in STOPS:
            saved = runs[stop - 1]
            clients = {i: send_as_bytes(saved.clients[i], Path(scratch)) for i in saved.clients}
            loaded = Run(saved.round, send_as_bytes(saved.server, Path(scratch)), ClientStates(clients))
            resumed = run_rounds(replace(method), start=loaded)
            assert is_same_run(runs[-1], resumed[-1]), (
                f"{method.name} ends otherwise when it is resumed after round {stop}; all that it needs later must be "
                "in the states that its hooks return"
            )


def check_engines(method: Method, runs: Sequence[Run]) -> None:
    with tempfile.TemporaryDirectory() as scratch:

        def elsewhere(
            method: Method, request: Request, states: Mapping[int, State], sites: Mapping[int, Site], tolerant: bool
        ) -> VisitResults:
            found = {}
            for i in reversed(list(sites)):
                state = states.get(i)
                before = None if state is None else send_as_bytes(state, Path(scratch))
                msg = send_as_bytes(request.message_to(i), Path(scratch))
                result = visit_client(method, request.purpose, msg, before, sites[i], i)
                reply, client = (send_as_bytes(part, Path(scratch)) for part in (result.reply, result.client))
                found[i] = result._replace(reply=reply, client=client)
            return found, {}

        assert is_same_run(runs[-1], run_rounds(method, visits=elsewhere)[-1]), (
            f"{method.name} ends otherwise when clients come in another order and states travel as bytes; a visit may "
            "depend on nothing but its message, its state and its site"
        )


def send_as_bytes(state: State, folder: Path) -> State:
    """The state as it is after a journey."""
    write_tensors(folder / "state", state, {})
    return read_tensors(folder / "state")[0]


def is_same_run(one: Run, other: Run) -> bool:
    """Bit for bit."""
    return is_equal(one.server, other.server) and is_equal(dict(one.clients), dict(other.clients))


def copy_tensors(value: Any) -> Any:
    """The tensors in an argument, apart from it; of a site the client's data."""
    if isinstance(value, Site):
        return [value.data.x.clone(), value.data.y.clone()] if value.data is not None else []
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {key: copy_tensors(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [copy_tensors(entry) for entry in value]
    return copy.copy(value)


def is_equal(one: Any, other: Any) -> bool:
    """Bit for bit, with all that is in them."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return bool(one == other)
