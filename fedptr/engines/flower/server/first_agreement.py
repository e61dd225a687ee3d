"""Who of the first nodes fits: what the plan or the server's own data states holds; more than half decide the rest.

While the nodes are divided nobody is refused, and the server waits for more of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedptr.data.dataset import Dataset
from fedptr.engines.flower.server.deploy_plan import DeployRules
from fedptr.engines.flower.wire.agreement import (
    LABELS,
    Agreement,
    Offer,
    are_alike,
    describe_images,
    find_majority,
    find_most_classes,
    make_agreement,
)
from fedptr.errors import UserError


@dataclass
class Sifted:
    """By the places of the offers: who is refused and why. There is no agreement while too few nodes fit."""

    agreed: Agreement | None = None
    refused: dict[int, str] = field(default_factory=dict)
    divided: str = ""


def sift_offers(offers: Sequence[Offer], rules: DeployRules, own: Dataset | None) -> Sifted:
    """The offers in the order of the clients' numbers."""
    shape, classes, known = stated_shape(rules, own), stated_classes(rules, own), make_own_offer(own)
    found, fitting = Sifted(), dict[int, Offer]()
    for place, offer in enumerate(offers):
        strange = [name for name in offer.classes if classes and name not in classes]
        if shape and offer.shape != shape:
            found.refused[place] = describe_misfit(f"images of {join_sizes(offer.shape)}", join_sizes(shape))
        elif strange:
            agreed = f"the agreed classes are {', '.join(classes[:20])}"
            found.refused[place] = describe_misfit(f"the class {strange[0]!r}", agreed)
        else:
            fitting[place] = offer
    if len(fitting) < rules.min_nodes:
        return found
    typical = known or find_majority(list(fitting.values()))
    if typical is None:
        found.divided = describe_division(list(fitting.values()))
        return found
    for place in [place for place, offer in fitting.items() if not are_alike(offer, typical)]:
        offer = fitting.pop(place)
        if offer.target != typical.target:
            others = f"others have {LABELS[typical.target]}"
            found.refused[place] = describe_misfit(f"{LABELS[offer.target]} as labels", others)
            continue
        images = describe_images(offer)
        found.refused[place] = describe_misfit(f"images of {images}", f"others have {describe_images(typical)}")
    while not classes and (worst := find_most_classes(list(fitting.values()), rules.max_classes)) is not None:
        place = list(fitting)[worst]
        count = len(fitting.pop(place).classes)
        limit = f"with it there are more than deploy.max_classes = {rules.max_classes}"
        found.refused[place] = describe_misfit(f"{count} classes", limit)
    if len(fitting) >= rules.min_nodes:
        found.agreed = make_agreement(list(fitting.values()), classes)
    return found


def stated_shape(rules: DeployRules, own: Dataset | None) -> tuple[int, ...]:
    stated = rules.agreed_shape()
    if own is None:
        return stated
    shape = own.shape
    if stated and stated != shape:
        raise UserError(f"deploy.shape is {rules.shape}, and the server's own images are {join_sizes(shape)}")
    return shape


def stated_classes(rules: DeployRules, own: Dataset | None) -> tuple[str, ...]:
    return rules.agreed_classes() or (own.classes if own is not None else ())


def make_own_offer(own: Dataset | None) -> Offer | None:
    """The server's own test data in the form of a node's."""
    if own is None:
        return None
    labels = (own.target, own.label_mean, own.label_std)
    return Offer("the server", len(own.train_y), own.classes, own.shape, tuple(own.mean), tuple(own.std), *labels)


def describe_misfit(what: str, other: str) -> str:
    return f"it has {what}, not fitting: {other}"


def describe_division(offers: Sequence[Offer]) -> str:
    """Which images the first of them have, where no kind is that of more than half."""
    some = ", ".join(f"{offer.name} has {describe_images(offer)}" for offer in offers[:4])
    advice = "state deploy.shape in deploy.toml, or correct the node that is wrong"
    return f"not more than half of the {len(offers)} nodes have images alike ({some}); {advice}"


def join_sizes(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))
