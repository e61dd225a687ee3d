"""A round's messages: to the cohort and back, once or, for methods that ask something first, twice.

A question is a message like any other and goes the same way, so every engine that can let a cohort visit can ask it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from fedptr.core.round_record import nbytes, split_log
from fedptr.core.site import Reply, Site
from fedptr.core.task import State
from fedptr.errors import ClientError, ReplyError, UserError
from fedptr.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedptr.core.federation import Run, Visit

    Send = Callable[[State, Mapping[int, Site]], tuple[dict[int, Visit], dict[int, str]]]  # visits, and who is missing


class Exchanged(NamedTuple):
    """What came of a round's messages."""

    server: State
    x: Tensor  # the model the cohort was sent
    log: State
    visits: dict[int, Visit]
    dropped: dict[int, str]
    down: int  # bytes, of all messages
    up: int = 0  # bytes, of answers; replies are counted with the visits


def exchange(method: FedAvg, run: Run, site: Site, sites: Mapping[int, Site], send: Send) -> Exchanged:
    """The broadcast and the cohort's visits; before them, where the method has one, a question and its answers.

    Who does not answer is not asked to train.
    """
    server, silent, down, up = run.server, dict[int, str](), 0, 0
    with named(method, site.round, "server"), site.key.fixed("model"):
        question = method.ask(server, site)
    if question is not None:
        heard, silent = send(question, sites)
        answers = replies_of(heard, sites)
        down, up = len(sites) * nbytes(question), sum(nbytes(answer.state) for answer in answers)
        if not answers:
            return Exchanged(server, run.w, {}, {}, silent, down)
        server = method.learn(server, answers, site)
        sites = {i: sites[i] for i in sorted(heard)}
    with named(method, site.round, "server"), site.key.fixed("model"):
        msg, server = method.broadcast(server, site)
    msg, log = split_log(msg)
    if "buffers" in run.server:
        msg["buffers"] = run.server["buffers"]
    visits, dropped = send(msg, sites)
    return Exchanged(server, msg["x"], log, visits, silent | dropped, down + len(sites) * nbytes(msg), up)


def replies_of(visits: Mapping[int, Visit], sites: Mapping[int, Site]) -> list[Reply]:
    """What methods may know of the visits, in client order."""
    return [Reply(i, sites[i].size, visits[i].reply, int(visits[i].log.get("steps", 0))) for i in sorted(visits)]


@contextlib.contextmanager
def named(method: FedAvg, t: int, who: str) -> Iterator[None]:
    """A failure inside says which method, round and client (or the server) it was."""
    try:
        yield
    except UserError:  # a setting that does not fit is no client's fault
        raise
    except Exception as error:
        words = str(error) if isinstance(error, ReplyError) else f"{type(error).__name__}: {error}"
        raise ClientError(f"{method.name}, round {t + 1}, {who}: {words}") from error
