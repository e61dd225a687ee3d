"""node.toml: who a node is, where its data is, and how it computes. It stays on the node.

[node]      name, number, its part of a split file, and its own code that the server may ask for
[data]      as in a plan: a named dataset, an .npz, an image folder
[machine]   as in a plan
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from fedptr.compute.workload import MachinePlan
from fedptr.data.dataset import Dataset
from fedptr.data.split import Split
from fedptr.errors import UserError
from fedptr.regular_files import expand_home
from fedptr.runs import plan as planning
from fedptr.runs.experiment import load_data
from fedptr.runs.plan import DataPlan
from fedptr.settings import build_settings, setting, unknown_name_error

NAME = "node.toml"
STATE = "state"
DATA = "data"  # where a node's data is if nobody said


@dataclass(frozen=True)
class NodeSettings:
    name: str = setting("", "what the node is called in records and messages")
    number: int = setting(0, "the client's number; it must not change, and no two nodes have the same", ge=0, lt=100000)
    split: str = setting("", "a split file, one part of which is this node's data; empty = all data is")
    part: int = setting(-1, "which part of the split file; -1 = the node's number", ge=-1)
    models: str = setting("", "own models and methods (module:name) that the server may ask for, separated by commas")

    init: str = setting(
        "", "the file that model.init names on the server, for plans with frozen parts; a path in the node's folder"
    )

    def allowed_names(self) -> list[str]:
        return [name.strip() for name in self.models.split(",") if name.strip()]


@dataclass(frozen=True)
class NodePlan:
    folder: Path  # where the clients' states are kept
    node: NodeSettings = field(default_factory=NodeSettings)
    data: DataPlan = field(default_factory=DataPlan)
    machine: MachinePlan = field(default_factory=MachinePlan)


SECTIONS: dict[str, Any] = {"node": NodeSettings, "data": DataPlan, "machine": MachinePlan}


def read_node_plan(folder: Path) -> NodePlan:
    """The node of a folder that holds a node.toml."""
    if not (folder / NAME).is_file():
        raise UserError(f"{folder} holds no {NAME}; make it with `fedptr deploy init`")
    return build_node_plan(planning.read_plan(folder / NAME), folder)


def build_node_plan(tables: Mapping[str, Any], folder: Path) -> NodePlan:
    for name in tables:
        if name not in SECTIONS:
            raise unknown_name_error(name, name, SECTIONS, f"a section of {NAME}")
    for section, name in (("node", "name"), ("node", "number"), ("data", "name")):
        if name not in tables.get(section, {}):
            raise UserError(f"{folder / NAME} does not say {section}.{name}; make it with `fedptr deploy init`")
    parts = {name: build_settings(cls, tables.get(name, {}), name) for name, cls in SECTIONS.items()}
    return NodePlan(folder, **parts)


class OwnData(NamedTuple):
    """A node's dataset, and which of it the node uses; None = all training samples, all test samples."""

    dataset: Dataset
    rows: list[int] | None = None
    held_out: bool = False  # whether its test samples are among the training samples of the dataset
    test_rows: list[int] | None = None


def looks_like_path(name: str) -> bool:
    return name == DATA or os.sep in name or name.endswith((".npz", ".csv", ".parquet"))


def load_own_data(plan: NodePlan) -> OwnData:
    """A split file may say on which samples each part is tested; otherwise the dataset's test part is the node's."""
    data, own = plan.data, plan.folder / plan.data.name
    if not data.dir and own.exists():
        data = replace(data, name=str(own))
    elif looks_like_path(data.name) and not expand_home(data.name).exists():
        form = "an image folder (train/CLASS/*.png and test/CLASS/*.png), an .npz file or a table"
        raise UserError(f"there is no data at {own} yet; put {form} there, or name its place in {plan.folder / NAME}")
    dataset = load_data(data)
    if not plan.node.split:
        return OwnData(dataset)
    split = Split.load(plan.folder / plan.node.split, len(dataset.train_y))
    part = plan.node.number if plan.node.part < 0 else plan.node.part
    if part >= len(split.clients):
        raise UserError(f"node.part {part} is not in {plan.node.split}, which has {len(split.clients)} parts")
    rows, tests = split.clients[part].tolist(), split.tests
    if tests is None:
        return OwnData(dataset, rows)
    return OwnData(dataset, rows, tests.kind == "holdout", tests.clients[part].tolist())
