"""A worker process: it holds a plan's experiment and trains clients, one at a time. It needs nothing from Ray.

States are sent as safetensors bytes, so no tensor is pickled.
"""

from __future__ import annotations

import tomllib
import traceback
from dataclasses import fields
from typing import Any, NamedTuple

import torch

import fedptr
from fedptr.core.method import Site
from fedptr.core.visit import Purpose, name_failures, visit_client
from fedptr.data.dataset import dataset_digest
from fedptr.data.split import Split
from fedptr.errors import ClientError, UserError
from fedptr.runs import plan as planning
from fedptr.runs.experiment import Experiment, prepare_experiment
from fedptr.tensor_bytes import pack_state, unpack_state

ELSEWHERE = ("task", "data", "test")  # parts of a site that the worker has itself


class Order(NamedTuple):
    """A client to train, as it is sent."""

    own: bytes  # the message to this client alone
    client: bytes | None  # its state
    place: dict[str, Any]  # its site, without task and data
    i: int


class Trained(NamedTuple):
    """A visit, as it is sent."""

    reply: bytes
    client: bytes
    log: bytes
    seconds: float


class Failed(NamedTuple):
    """An error, as it is sent: the message for a person, and where it was raised."""

    words: str
    user: bool  # the user can fix it
    trace: str

    @property
    def error(self) -> UserError | ClientError:
        error = UserError(self.words) if self.user else ClientError(self.words)
        error.add_note(self.trace)  # seen with FEDPTR_TRACEBACK=1
        return error


class Worker:
    """Lives in a process of its own."""

    def prepare(self, plan: str, split: Split) -> dict[str, str] | Failed:
        """Builds the experiment of a plan (TOML), with the split it was given; returns a description of it."""
        try:
            self.plan = planning.check_plan(tomllib.loads(plan))
            self.experiment = prepare_experiment(self.plan, split)
            return describe_experiment(self.experiment)
        except UserError as error:
            return describe_failure(error)

    def visit_clients(self, purpose: Purpose, msg: bytes, orders: list[Order]) -> list[Trained | Failed]:
        return [self.visit_one(purpose, msg, order) for order in orders]

    def visit_one(self, purpose: Purpose, msg: bytes, order: Order) -> Trained | Failed:
        """One client's round."""
        method, e, i, client = self.plan.method, self.experiment, order.i, order.client
        test = e.client_tests[i] if e.client_tests else None
        site = Site(task=e.task, data=e.clients[i], test=test, **order.place)
        try:
            with name_failures(method, site.round, f"client {i}"):
                state = None if client is None else unpack_state(client)
                message = {**unpack_state(msg), **unpack_state(order.own)}
                result = visit_client(method, purpose, message, state, site, i)
                return Trained(
                    pack_state(result.reply), pack_state(result.client), pack_state(result.log), result.seconds
                )
        except (UserError, ClientError) as error:
            return describe_failure(error)


def describe_site(site: Site) -> dict[str, Any]:
    """A site as it is sent."""
    return {f.name: getattr(site, f.name) for f in fields(site) if f.name not in ELSEWHERE}


def describe_failure(error: UserError | ClientError) -> Failed:
    return Failed(str(error), isinstance(error, UserError), "".join(traceback.format_exception(error)))


def describe_experiment(experiment: Experiment) -> dict[str, str]:
    """What must be the same in every process of a run, or its bits may differ."""
    return {
        "fedptr": fedptr.__version__,
        "torch": torch.__version__,
        "data": dataset_digest(experiment.dataset),
        "way of computing": experiment.task.how,
        **({"initial weights": experiment.initial} if experiment.initial else {}),
    }
