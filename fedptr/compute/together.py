"""Tiny clients, trained several at a time: a step of all of them is a few operations, with the bits of one by one.

For linear models and MLPs, and for methods whose clients do plain SGD on their loss plus a pull. Clients with the same
number of samples take their steps together. That the bits are the same is checked when a size first occurs; where they
are not, and wherever anything is unusual, clients are trained one by one.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedptr.compute.blocks import BlockedTask
from fedptr.compute.dense import DenseGradient, padded_rows
from fedptr.core.local_training import Local, TrainedModel
from fedptr.core.method import Method, Site
from fedptr.core.visit import Request, VisitResults, first_state, visit_in_process
from fedptr.types import State

HOOKS = ("train", "gradient", "start", "data", "prepare")  # which must be the base's
CACHE, MOST = 8e6, 32  # bytes of the models, velocities and gradients of those together; their number
DATA = 2.5e5  # bytes of a client's data in all epochs


def visit_together(
    method: Method, request: Request, states: Mapping[int, State], sites: Mapping[int, Site], tolerant: bool
) -> VisitResults:
    """See `visit_in_process`."""
    trained: dict[int, TrainedModel] = {}
    if request.purpose == "train" and "x" in request.msg:
        for group in find_groups(method, request, sites):
            trained |= train_group(method, request, states, {i: sites[i] for i in group})
    return visit_in_process(method, request, states, sites, tolerant, trained)


def find_groups(method: Method, request: Request, sites: Mapping[int, Site]) -> list[list[int]]:
    """The clients that can be trained together; the others are in none."""
    task = next(iter(sites.values())).task
    if not isinstance(task, BlockedTask) or not isinstance(task._grad, DenseGradient) or task.own_names:
        return []
    if any(getattr(type(method), hook) is not getattr(Method, hook) for hook in HOOKS):
        return []
    local = method.settings(next(iter(sites.values())).local)
    unusual = local.clip or local.gamma or local.record_gamma or local.augment != "none" or local.optimiser != "sgd"
    most = min(MOST, int(CACHE / (3 * request.x.nbytes)))
    if unusual or local.batch > task.block or most < 2:
        return []

    def is_usual(i: int) -> bool:
        data, numbers = sites[i].data, math.prod(task.shape)
        if data is None or data.extra is not None or sites[i].part != 1 or "x" in request.own.get(i, {}):
            return False
        return len(data) * local.epochs * numbers * 4 <= DATA

    groups = []
    for _, same in itertools.groupby(
        sorted(filter(is_usual, sites), key=lambda i: sites[i].size), lambda i: sites[i].size
    ):
        groups += [list(group) for group in batched(list(same), most)]
    return [group for group in groups if len(group) > 1]


def batched(items: Sequence[int], size: int) -> list[Sequence[int]]:
    return [items[k : k + size] for k in range(0, len(items), size)]


def train_group(
    method: Method, request: Request, states: Mapping[int, State], sites: Mapping[int, Site]
) -> dict[int, TrainedModel]:
    """The trained models of clients with equally many samples; none of them where they must train one by one."""
    began, first = time.perf_counter(), next(iter(sites.values()))
    task, local, n, x0 = first.task, method.settings(first.local), len(first.samples), request.msg["x"]
    assert isinstance(task, BlockedTask)
    gradient = task._grad
    assert isinstance(gradient, DenseGradient)
    sizes = [min(local.batch, n - k) for k in range(0, n, local.batch)]
    if not all(gradient.is_same_for_many(len(sites), size, task.shape, x0) for size in set(sizes)):
        return {}
    try:
        x, y = draw_epochs(sites, n, local)
        pulls = [] if type(method).pull is Method.pull else find_pulls(method, request, states, sites)
        if x.dtype != x0.dtype:
            return {}
        W, V, G = (padded_rows(len(sites), len(x0), x0) for _ in range(3))
        W[:, : len(x0)] = x0
        losses = []
        for epoch in range(local.epochs):
            for k, size in enumerate(sizes):
                at = epoch * n + k * local.batch
                q = x0.new_full((size,), 1 / size)
                rows = slice(at, at + size)
                losses.append(gradient.of_many(W, x[:, rows].contiguous(), y[:, rows], q, G))
                for w, g, pull in zip(W[:, : len(x0)], G[:, : len(x0)], pulls, strict=False):
                    more = pull(w)
                    if more is not None:
                        g.add_(more)
                V.mul_(local.momentum).add_(G + local.weight_decay * W if local.weight_decay else G)
                W.add_(V, alpha=-local.lr)
        means = torch.stack(losses, 1)
    except Exception:  # one by one, the client that fails is named
        return {}
    seconds = (time.perf_counter() - began) / len(sites)
    return {
        i: TrainedModel(W[k, : len(x0)].clone(), len(losses), float(means[k].mean()), seconds=seconds)
        for k, i in enumerate(sites)
    }


def find_pulls(
    method: Method, request: Request, states: Mapping[int, State], sites: Mapping[int, Site]
) -> list[Callable[[Tensor], Tensor | None]]:
    """Each client's pull, of its model."""

    def make(i: int, site: Site) -> Callable[[Tensor], Tensor | None]:
        msg, client = request.message_to(i), states.get(i)
        at = replace(site, local=method.settings(site.local))
        kept = first_state(method, msg, at, i) if client is None else client
        return lambda w: method.pull(w, msg, kept, at)

    return [make(i, site) for i, site in sites.items()]


def draw_epochs(sites: Mapping[int, Site], n: int, local: Local) -> tuple[Tensor, Tensor]:
    """What local training sees of each client, epoch after epoch."""
    xs, ys = [], []
    for site in sites.values():
        order = site.key("batch-order")
        x, y = site.samples.take(torch.cat([torch.randperm(n, generator=order) for _ in range(local.epochs)]))
        xs.append(x)
        ys.append(y)
    return torch.stack(xs), torch.stack(ys)
