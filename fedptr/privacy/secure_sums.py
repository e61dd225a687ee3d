"""Whether a method's server needs the individual replies, or only their sum.

Secure aggregation shows the server only a sum; so does differential privacy, with noise. A method is compatible if its
server computes the same from the replies as from the same number of copies of their mean. This is tested with invented
replies, so it also works for methods outside this package.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fedptr.core.local_training import Local
from fedptr.core.method import Method, Site
from fedptr.core.randomness import Key
from fedptr.core.round_record import split_log
from fedptr.core.samples import Samples
from fedptr.core.task import Classification
from fedptr.types import Reply, State

SIZES, STEPS = (1, 2, 5), (1, 3, 4)  # of the invented replies


def reply_entries(method: Method, msg: State, site: Site) -> set[str]:
    """The names in a reply to this message, found by calling the method for an imaginary client."""
    here, client = make_imaginary_client(method, msg, site)
    answer = method.answer(msg, client, here)
    if answer is not None:
        return set(answer)
    reply, _ = split_log(method.reply(msg["x"], msg, client, 1, here)[0])
    return set(reply) | ({"buffers"} if "buffers" in msg and reply else set())


def is_training_message(method: Method, msg: State, site: Site) -> bool:
    """Whether a client trains on this message, rather than only answering a question."""
    here, client = make_imaginary_client(method, msg, site)
    return method.answer(msg, client, here) is None


def make_imaginary_client(method: Method, msg: State, site: Site) -> tuple[Site, State]:
    """A client with one sample, and its state."""
    x, task = msg["x"], site.task
    data = Samples(torch.zeros(1, *task.shape, device=x.device), torch.zeros(1, dtype=torch.int64, device=x.device))
    here = replace(site, data=data, size=1, local=method.settings(site.local))
    return here, method.client_init(x, here)


def asks_question(method: Method) -> bool:
    """Whether the method asks a question before the broadcast."""
    site = make_small_site()
    return method.ask(method.server_init(site.task.init(), site), site) is not None


def sent_entries(method: Method) -> set[str]:
    """The names in what a client sends after training."""
    site = make_small_site()
    server = method.server_init(site.task.init(), site)
    question = method.ask(server, site)
    if question is not None:
        server = method.learn(server, invent_replies(reply_entries(method, question, site), site), site)
    return reply_entries(method, method.broadcast(server, site)[0], site)


def sums_suffice(method: Method) -> bool:
    """Whether the server needs only the mean of the replies, with the method's own weights.

    >>> from fedptr.methods import get
    >>> [sums_suffice(get(name)()) for name in ("fedavg", "feddyn", "fedcm")]
    [True, True, False]
    >>> sums_suffice(get("feddyn")(weighting="samples"))
    False
    """
    site = make_small_site()
    server = method.server_init(site.task.init(), site)
    question = method.ask(server, site)
    if question is not None:
        answers = invent_replies(reply_entries(method, question, site), site)
        other = method.learn(server, replace_by_mean(method, answers), site)
        server = method.learn(server, answers, site)
        if not states_agree(server, other):
            return False
    msg, server = method.broadcast(server, site)
    replies = invent_replies(reply_entries(method, split_log(msg)[0], site), site)
    other = method.aggregate(server, replace_by_mean(method, replies), site)
    return states_agree(method.aggregate(server, replies, site), other)


def replace_by_mean(method: Method, replies: list[Reply]) -> list[Reply]:
    """The same replies, each with the mean as its state."""
    mean = {name: method.mean(replies, name) for name in replies[0].state}
    return [reply._replace(state=mean) for reply in replies]


def make_small_site() -> Site:
    """A server site with a tiny model; whether sums suffice does not depend on the model."""
    with Key(0).fixed("init"):
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    return Site(Classification(model, (1, 2, 2), 2, "cpu"), Local(), Key(0), 0, 2 * len(SIZES))


def invent_replies(names: set[str], site: Site) -> list[Reply]:
    """Three replies with random tensors of these names."""
    x = site.task.init()
    draws = [{name: torch.randn(len(x), generator=Key(i)(name), dtype=x.dtype) for name in names} for i in range(3)]
    return [Reply(i, SIZES[i], draw, STEPS[i]) for i, draw in enumerate(draws)]


def states_agree(one: State, other: State) -> bool:
    return all(torch.allclose(one[name], other[name], atol=1e-4) for name in one)
