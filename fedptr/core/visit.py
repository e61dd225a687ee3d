"""A client's visit: what it is asked, its whole round, and the checks of its reply. Every engine runs this code."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedptr.core.client_scores import score_models
from fedptr.core.local_training import TrainedModel
from fedptr.core.method import Entry, Method, Site
from fedptr.core.own_part import OWN, first_part, gives_own_models, train_both_parts
from fedptr.core.randomness import Key, keep_global_generator
from fedptr.core.round_record import count_bytes, split_log
from fedptr.errors import ClientError, ReplyError, UserError
from fedptr.types import State

Purpose = Literal["answer", "train", "evaluate"]


class Request(NamedTuple):
    """What the server asks of clients: to answer a question, to train, or to evaluate models on their test data."""

    purpose: Purpose
    x: Tensor  # the global model; sent only if it is in the message
    msg: State  # to every client
    expected: Mapping[str, Entry]  # what a reply must hold
    own: Mapping[int, State] = {}  # to one client alone

    def message_to(self, i: int) -> State:
        return {**self.msg, **self.own.get(i, {})}

    def bytes_to(self, clients: Iterable[int]) -> int:
        return sum(count_bytes(self.msg) + count_bytes(self.own.get(i, {})) for i in clients)


class Visit(NamedTuple):
    """The result of one client's round."""

    reply: State  # sent to the server
    client: State  # kept by the client
    log: State  # recorded
    seconds: float


VisitResults = tuple[dict[int, Visit], dict[int, str]]  # visits that ended in a reply; why the others did not
# How a cohort visits; `visit_in_process` is one way.
VisitCohort = Callable[[Method, Request, Mapping[int, State], Mapping[int, Site], bool], VisitResults]


def visit_in_process(
    method: Method,
    request: Request,
    states: Mapping[int, State],
    sites: Mapping[int, Site],
    tolerant: bool,
    trained: Mapping[int, TrainedModel] = {},
) -> VisitResults:
    """The cohort's visits, one after another in this process. A client that fails keeps the state it had.

    `trained` are the models of clients that were trained already, as `method.train` would have.
    """
    visits, dropped = {}, {}
    with keep_global_generator():
        for i, site in sites.items():
            site.key.seed_global("model")
            try:
                visits[i] = visit_and_check(method, request, states, site, i, trained.get(i))
            except ClientError as error:
                if not tolerant:
                    raise
                dropped[i] = str(error)
    return visits, dropped


def visit_and_check(
    method: Method,
    request: Request,
    states: Mapping[int, State],
    site: Site,
    i: int,
    trained: TrainedModel | None = None,
) -> Visit:
    """A client's visit, whose failures are named. PyTorch's global generator is as the caller leaves it."""
    with name_failures(method, site.round, f"client {i}"):
        result = make_visit(method, request.purpose, request.message_to(i), states.get(i), site, i, trained)
        check_reply(result.reply, request.expected)
    return result


def visit_client(method: Method, purpose: Purpose, msg: State, client: State | None, site: Site, i: int) -> Visit:
    """A client's whole round; pure. Every engine runs this function: in-process, on a cluster, over a network."""
    with site.key.fixed("model"):
        return make_visit(method, purpose, msg, client, site, i)


def make_visit(
    method: Method,
    purpose: Purpose,
    msg: State,
    client: State | None,
    site: Site,
    i: int,
    trained: TrainedModel | None = None,
) -> Visit:
    """The same where PyTorch's global generator is seeded already, or not used."""
    local = method.settings(site.local)
    if local is not site.local:
        site = replace(site, local=local)
    if purpose == "evaluate" and not gives_own_models(method, site.task):
        client = {}  # the global model is all that is evaluated
    if client is None:
        client = first_state(method, msg, site, i)
    began = time.perf_counter()
    if purpose != "train":
        reply = method.answer(msg, client, site) if purpose == "answer" else score_models(method, msg, client, site)
        return Visit(reply, client, {}, time.perf_counter() - began)
    msg, client = method.prepare(msg, client, site)
    began = time.perf_counter()
    buffers = site.task.unpack_buffers(msg.get("buffers"))
    if OWN in client:
        kept, client = client[OWN], {name: value for name, value in client.items() if name != OWN}
        trained, kept = train_both_parts(method, msg, client, kept, site, buffers)
    elif trained is not None:
        kept = None
    else:
        kept, (trained, client) = None, method.train(msg, client, site, buffers)
    seconds = time.perf_counter() - began + trained.seconds
    reply, client = method.reply(trained.w, msg, client, trained.steps, site)
    client = client if kept is None else {**client, OWN: kept}
    if method.personalised:  # a model that stays with its client is in no reply
        check_kept_models(client, trained.w)
    (_, prepared), (reply, log) = split_log(msg), split_log(reply)
    if "buffers" in msg and reply:  # an empty reply has no buffers either
        reply = {**reply, "buffers": site.task.pack_buffers(buffers)}
    log |= prepared
    for name, value in (("steps", trained.steps), ("train_loss", trained.loss), ("gamma", trained.gamma)):
        if value is not None:
            log[name] = torch.tensor(value, dtype=torch.int64 if name == "steps" else torch.float64)
    return Visit(reply, client, log, seconds)


def first_state(method: Method, msg: State, site: Site, i: int) -> State:
    """The state of a client that was never visited; its key does not depend on the round."""
    x = msg["x"] if "x" in msg else site.task.init()
    own = first_part(site.task)
    return {**method.client_init(x, replace(site, key=Key(site.key.seed).at("client", i))), **own}


def check_reply(reply: State, expected: Mapping[str, Entry]) -> None:
    """A client must send what is expected, and every tensor must be finite."""
    if reply.keys() != expected.keys():
        sent, asked = (", ".join(sorted(names))[:200] or "nothing" for names in (reply, expected))
        raise ReplyError(f"it sent {sent}, not {asked}")
    rows = {len(value) for name, value in reply.items() if expected[name].fewer and value.dim()}
    if len(rows) > 1:
        raise ReplyError(f"its entries have different numbers of rows: {', '.join(map(str, sorted(rows)))}")
    for name, value in reply.items():
        entry, shape, dtype = expected[name], tuple(expected[name].shape), expected[name].dtype
        if not entry.fits(tuple(value.shape)) or value.dtype != dtype:
            asked = f"{dtype} of {'up to ' if entry.fewer else ''}{shape}"
            raise ReplyError(f"its {name!r} is {value.dtype} of shape {tuple(value.shape)}, not {asked}")
        if not is_finite(value):
            cure = "a smaller method.lr_img" if entry.fewer else "a smaller local.lr or a local.clip"
            raise ReplyError(f"its {name!r} is not finite; {cure} may help")


def check_kept_models(client: State, w: Tensor) -> None:
    """The models that a client keeps must be finite."""
    for name, value in client.items():
        if value.shape == w.shape and not is_finite(value):
            raise ReplyError(f"it keeps {name!r}, which is not finite; a smaller local.lr or a local.clip may help")


def is_finite(value: Tensor) -> bool:
    """Whether every number is; a product with zero is zero then, and else it is NaN."""
    if not value.is_floating_point():
        return bool(torch.isfinite(value).all())
    return float((value * 0).sum()) == 0


@contextlib.contextmanager
def name_failures(method: Method, t: int, who: str) -> Iterator[None]:
    """An error inside the block names the method, the round and the client (or the server)."""
    try:
        yield
    except UserError:  # a wrong setting is not a client's failure
        raise
    except Exception as error:
        words = str(error) if isinstance(error, ReplyError) else f"{type(error).__name__}: {error}"
        raise ClientError(f"{method.name}, round {t + 1}, {who}: {words}") from error
