"""Flower's half of SecAgg+ on the server, stage by stage over a grid of our own.

Flower's workflow chooses nodes by a legacy strategy, sends them a legacy FitIns, and waits for ever. Here its stages
are called one after the other around a strategy that chooses the given nodes and takes the mean. After the setup each
node's instruction becomes our own record. After the keys are shared, nodes that left before they had given any share
are forgotten: Flower would ask the others for shares of them, and fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message import make_message
from flwr.common import Code, FitIns, FitRes, Parameters, Status, parameters_to_ndarrays
from flwr.compat.common.recorddict_compat import fitres_to_recorddict
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

from fedptr.engines.flower.patches.flower_code import FlowerCode
from fedptr.engines.flower.patches.secagg_masks import SERVER, import_with_masks
from fedptr.engines.flower.patches.secagg_node import RECORD

WORKFLOW = "SecAggPlusWorkflow"
FLOWER = (
    FlowerCode(SERVER, "WorkflowState", 72, "nid_to_neighbours: dict[int, set[int]]", "91415782137e66cd"),
    FlowerCode(SERVER, f"{WORKFLOW}.__init__", 165, "reconstruction_threshold: int | float,", "1b479709e3ccb88f"),
    FlowerCode(
        SERVER, f"{WORKFLOW}.setup_stage", 286, "proxy_fitins_lst = context.strategy.configure_fit(", "892a5a68cc6aef04"
    ),
    FlowerCode(SERVER, f"{WORKFLOW}.share_keys_stage", 409, "state.active_node_ids", "a22dfd6309540039"),
    FlowerCode(SERVER, f"{WORKFLOW}.collect_masked_vectors_stage", 486, "state.nid_to_fitins[nid]", "e2e2900e524ba35a"),
    FlowerCode(SERVER, f"{WORKFLOW}.unmask_stage", 665, "context.strategy.aggregate_fit(", "c4639d18768446e9"),
)
OF_NODES = (ValueError, TypeError, LookupError, ArithmeticError, AssertionError, AttributeError)  # not of the network
STAGES = ("setup_stage", "share_keys_stage", "collect_masked_vectors_stage", "unmask_stage")


class UnmaskableError(Exception):
    """No mean came out of a round."""


def average_masked(
    grid: Any, orders: Mapping[int, RecordDict], number: int, threshold: int, **settings: float
) -> list[Any] | None:
    """The weighted mean of what the nodes send masked in round `number`; None where too few nodes were left.

    `grid` needs `send_and_receive` only; `settings` are those of Flower's SecAggPlusWorkflow.
    """
    module = import_with_masks(SERVER)
    workflow, state = module.SecAggPlusWorkflow(1.0, threshold, **settings), module.WorkflowState()
    mean = list[Any]()
    context = make_context(list(orders), number, mean)
    for name in STAGES:
        try:
            enough = getattr(workflow, name)(grid, context, state)
        except OF_NODES as error:  # shares that do not fit each other
            raise UnmaskableError(f"secure aggregation failed ({type(error).__name__}: {error})") from None
        if name == "setup_stage":
            state.nid_to_fitins = dict(orders)
        if name == "share_keys_stage":
            alive = state.sampled_node_ids = set(state.active_node_ids)
            state.nid_to_neighbours = {node: state.nid_to_neighbours[node] & alive for node in alive}
        if not enough:
            return None
    return mean


def make_plain_reply(reply: Message, parts: list[bytes]) -> Message:
    """A node's masked numbers and nothing else of its reply; Flower reads the legacy FitRes, which is empty here."""
    records: RecordDict = fitres_to_recorddict(FitRes(Status(Code.OK, ""), Parameters([], ""), 0, {}), False)
    records[RECORD] = ConfigRecord({"masked_params": parts})
    return make_message(reply.metadata, records)


def make_context(nodes: list[int], number: int, mean: list[Any]) -> Any:
    """What Flower's workflow expects around it; the mean is added to `mean`."""

    class Strategy:
        def configure_fit(self, *_: Any) -> list[Any]:
            return [(SimpleNamespace(node_id=node), FitIns(Parameters([], ""), {})) for node in nodes]

        def aggregate_fit(self, _: int, results: list[Any], failures: Any) -> tuple[None, dict[str, Any]]:
            mean.extend(parameters_to_ndarrays(results[0][1].parameters))
            return None, {}

    records = SimpleNamespace(
        config_records={MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: number})},
        array_records={MAIN_PARAMS_RECORD: ArrayRecord()},
    )
    manager = SimpleNamespace(num_available=lambda: len(nodes))
    return SimpleNamespace(state=records, strategy=Strategy(), client_manager=manager)
