"""Secure aggregation on the server: Flower's SecAgg+ over our courier, which shows it the mean of the replies alone.

Every node's numbers arrive masked. Who drops out on the way is no harm while a majority of those asked stays; with
fewer, nothing is learnt and the round does not count. What arrives is checked before Flower's part reads it; what was
masked cannot be, so that bounds hold for the mean.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.common import FitIns, Parameters, parameters_to_ndarrays
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

from fedptr.engines.flower.node.masked_reply import RECORD
from fedptr.engines.flower.patches.secagg_masks import WORKFLOW, flower
from fedptr.engines.flower.wire.courier import Courier
from fedptr.engines.flower.wire.parcel import Parcel, words_from
from fedptr.engines.flower.wire.records import to_records
from fedptr.errors import ReplyError

LEVELS = 1 << 22  # a number within ±range is rounded to one of so many, at random, so that it is right on average
MODULUS = 1 << 32
MOST = MODULUS // LEVELS - 1  # nodes, whose sum must not reach the modulus
KEYS = 120.0  # seconds for the messages that take no training


class UnmaskableError(Exception):
    """No mean came out of a round."""


def resolution(bound: float) -> float:
    """The distance of two levels.

    >>> resolution(8.0) < 4e-6
    True
    """
    return 2 * bound / LEVELS


@dataclass
class Collected:
    mean: list[Any]  # one array per entry, by their sorted names
    words: dict[int, dict[str, Any]]  # by node, of those that are in the mean
    failures: dict[int, str]


def collect(courier: Courier, orders: Mapping[int, Parcel], shapes: list[tuple[int, ...]], timeout: float) -> Collected:
    """Lets the nodes carry out their orders, each of which has its `weight`, and returns the weighted mean."""
    if not 2 <= len(orders) <= MOST:
        raise UnmaskableError(f"secure aggregation takes 2 to {MOST} nodes, not {len(orders)}")
    first = next(iter(orders.values())).words
    carrier = Carrier(courier, dict(orders), [(1,), *shapes], timeout)
    module = flower(WORKFLOW)
    workflow = module.SecAggPlusWorkflow(
        1.0,
        len(orders) // 2 + 1,
        max_weight=float(first["largest"]),
        clipping_range=float(first["range"]),
        quantization_range=LEVELS,
        modulus_range=MODULUS,
    )
    state, found = module.WorkflowState(), list[Any]()
    context = around(list(orders), int(first["round"]) + 1, found)
    stages = ("setup_stage", "share_keys_stage", "collect_masked_vectors_stage", "unmask_stage")
    for name in stages:
        try:
            enough = getattr(workflow, name)(carrier, context, state)
        except (ValueError, TypeError, KeyError, IndexError) as error:  # shares that do not fit each other
            raise UnmaskableError(f"secure aggregation failed ({type(error).__name__}: {error})") from None
        if name == "setup_stage":
            state.nid_to_fitins = {node: to_records(order) for node, order in orders.items()}
        if name == "share_keys_stage":  # Flower would ask for shares of those who left before they had given any
            alive = state.sampled_node_ids = set(state.active_node_ids)
            state.nid_to_neighbours = {node: state.nid_to_neighbours[node] & alive for node in alive}
        if not enough:
            raise UnmaskableError(f"too few nodes for secure aggregation ({reasons(carrier.failures)})")
    return Collected(found, carrier.words, carrier.failures)


def reasons(failures: Mapping[int, str]) -> str:
    return "; ".join(failures.values()) or "no node failed"


def around(nodes: list[int], number: int, found: list[Any]) -> Any:
    """What Flower's workflow expects around it: a strategy that chooses these nodes and takes the mean."""

    class Strategy:
        def configure_fit(self, *_: Any) -> list[Any]:
            return [(SimpleNamespace(node_id=node), FitIns(Parameters([], ""), {})) for node in nodes]

        def aggregate_fit(self, _: int, results: list[Any], failures: Any) -> tuple[None, dict[str, Any]]:
            found.extend(parameters_to_ndarrays(results[0][1].parameters))
            return None, {}

    records = SimpleNamespace(
        config_records={MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: number})},
        array_records={MAIN_PARAMS_RECORD: ArrayRecord()},
    )
    manager = SimpleNamespace(num_available=lambda: len(nodes))
    return SimpleNamespace(state=records, strategy=Strategy(), client_manager=manager)


@dataclass
class Carrier:
    """The grid that Flower's workflow sees: replies that are not what they must be never reach it."""

    courier: Courier
    orders: dict[int, Parcel]
    shapes: list[tuple[int, ...]]
    timeout: float
    words: dict[int, dict[str, Any]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        to = {message.metadata.dst_node_id: message for message in messages}
        stage = str(next(iter(to.values())).content.config_records[RECORD]["stage"])
        training = stage == "collect_masked_vectors"
        replies, failures = self.courier.gather(to, self.timeout if training else min(KEYS, self.timeout))
        self.failures |= failures
        good = []
        for node, reply in replies.items():
            try:
                if reply.metadata.src_node_id != node:
                    raise ReplyError("answered as another node")
                CHECKS[stage](self, reply)
                if training:
                    record = reply.content.config_records.get("words")
                    self.words[node] = words_from(record.get("json") if record else None)
                good.append(reply)
            except ReplyError as error:
                self.failures[node] = str(error)
        return good

    def keys(self, reply: Message) -> None:
        of(reply, {"pk1": bytes, "pk2": bytes})

    def shares(self, reply: Message) -> None:
        found = of(reply, {"dsts": int, "ctxts": bytes})
        if len(found["dsts"]) != len(found["ctxts"]) or not set(found["dsts"]) <= set(self.orders):
            raise ReplyError("sent shares for nodes that were not asked")

    def vectors(self, reply: Message) -> None:
        arrays = [whole(content) for content in of(reply, {"masked_params": bytes})["masked_params"]]
        if [None if array is None else array.shape for array in arrays] != self.shapes:
            raise ReplyError("sent masked numbers of another shape")

    def unmasking(self, reply: Message) -> None:
        found = of(reply, {"nids": int, "shares": bytes})
        if len(found["nids"]) != len(found["shares"]) or not set(found["nids"]) <= set(self.orders):
            raise ReplyError("sent shares of nodes that were not asked")


CHECKS: dict[str, Callable[[Carrier, Message], None]] = {
    "setup": Carrier.keys,
    "share_keys": Carrier.shares,
    "collect_masked_vectors": Carrier.vectors,
    "unmask": Carrier.unmasking,
}


def of(reply: Message, kinds: Mapping[str, type]) -> dict[str, list[Any]]:
    """The entries of a reply of the protocol, each as a list, if they are of these kinds."""
    record = reply.content.config_records.get(RECORD)
    found = {}
    for name, kind in kinds.items():
        value = None if record is None else record.get(name)
        values = value if isinstance(value, list) else [value]
        if not all(type(entry) is kind for entry in values):
            raise ReplyError(f"sent no sound {name!r} for secure aggregation")
        found[name] = values
    return found


def whole(content: bytes) -> Any:
    """An array of whole numbers below the modulus, or None."""
    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, OSError, EOFError):
        return None
    sound = isinstance(array, np.ndarray) and array.dtype == np.int64
    return array if sound and bool(((array >= 0) & (array < MODULUS)).all()) else None
