"""The nodes of a simulation: client i of the plan's own split, in the process that Flower chooses."""

from __future__ import annotations

import functools
from dataclasses import asdict
from pathlib import Path

from flwr.app import Context

from fedptr.engines.flower.node.node import Node
from fedptr.engines.flower.node.node_plan import build_node_plan
from fedptr.methods import PTR, method_address
from fedptr.models.initial_weights import find_weights
from fedptr.runs.plan import load_plan

NODES = "node-states"  # in the run folder: the clients' states


def node_of_context(context: Context) -> Node:
    return make_simulated_node(Path(str(context.run_config["folder"])), int(context.node_config["partition-id"]))


@functools.lru_cache(maxsize=64)
def make_simulated_node(folder: Path, i: int) -> Node:
    """A node as node.toml would describe it."""
    plan = load_plan(folder)
    own = ",".join([plan.model.name, method_address(type(plan.method)).removesuffix(PTR)])
    who = {"name": f"client {i}", "number": i, "split": str(folder / "split.json"), "models": own}
    who["init"] = str(find_weights(plan.model.init).absolute()) if plan.model.init else ""
    tables = {
        "node": who,
        "data": asdict(plan.data),
        "machine": asdict(plan.machine),
    }
    return Node(build_node_plan(tables, folder / NODES))
