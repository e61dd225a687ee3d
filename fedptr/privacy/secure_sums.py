"""Whether a method's server needs the individual replies, or only their sum.

Secure aggregation shows the server only a sum; so does differential privacy, with noise. A method is compatible if its
server computes the same from the replies as from the same number of copies of their mean. This is tested with invented
replies, so it also works for methods outside this package.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedptr.core.local_training import Local
from fedptr.core.method import Entry, Method, Site
from fedptr.core.randomness import Key
from fedptr.core.task import Classification
from fedptr.types import Reply, State

SIZES, STEPS = (1, 2, 5), (1, 3, 4)  # of the invented replies


def sums_suffice(method: Method) -> bool:
    """Whether the server needs only the mean of the replies, with the method's own weights.

    >>> from fedptr.methods import find_method
    >>> [sums_suffice(find_method(name)()) for name in ("fedavg", "feddyn", "fedcm")]
    [True, True, False]
    >>> sums_suffice(find_method("feddyn")(weighting="samples"))
    False
    """
    site = make_small_site()
    if not all(entry.summable for entry in {**method.answers(site.task), **method.sends(site.task)}.values()):
        return False
    server = method.server_init(site.task.init(), site)
    question = method.ask(server, site)
    if question is not None:
        answers = invent_replies(method.answers(site.task), site)
        other = method.learn(server, replace_by_mean(method, answers), site)
        server = method.learn(server, answers, site)
        if not states_agree(server, other):
            return False
    _, server = method.broadcast(server, site)
    replies = invent_replies(method.sends(site.task), site)
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
    return Site(Classification(model, (1, 2, 2), 2, "cpu"), Local(), Key(0), 0, 2 * len(SIZES), numbers=2 * len(SIZES))


def invent_replies(entries: Mapping[str, Entry], site: Site) -> list[Reply]:
    """Three replies with random tensors in these entries."""
    kind = site.task.init().dtype
    draws = [
        {name: torch.randn(entry.shape, generator=Key(i)(name), dtype=kind) for name, entry in entries.items()}
        for i in range(3)
    ]
    return [Reply(i, SIZES[i], draw, STEPS[i]) for i, draw in enumerate(draws)]


def states_agree(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(
        one[name].shape == other[name].shape and torch.allclose(one[name], other[name], atol=1e-4) for name in one
    )
