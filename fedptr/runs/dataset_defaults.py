"""What a plan has where nobody says otherwise, by dataset: sizes that a laptop trains in minutes.

The defaults of the settings themselves are the paper's, made for tens of thousands of images and a GPU; `--preset
paper` takes those. Digits were tuned over all methods. The other datasets follow the scale `cpu` of the recipes, whose
learning rate of 0.03 suits all methods (results/README.md).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from fedptr import methods
from fedptr.core.method import Method
from fedptr.data.own_data import holds_rows
from fedptr.data.tables import SUFFIXES, holds_text, table_parts
from fedptr.messages import count_noun
from fedptr.methods.fedptr import FedPTR
from fedptr.methods.ptr.combine import ptr_setting_name
from fedptr.methods.ptr.trajectory import Trajectory
from fedptr.runs.laptop_settings import (
    ADAPTIVE,
    DEFAULTS,
    MATCHING,
    ON_CLIENTS,
    ON_SERVER,
    OWN_DATA,
    SHOWN,
    TABLE,
    TABLE_MATCHING,
    TEXT,
    USUAL_MATCHING,
    Settings,
)
from fedptr.runs.plan import DataPlan, Tables


def dataset_name(tables: Tables) -> str:
    data = tables.get("data", {})
    name = data.get("name", DataPlan().name) if isinstance(data, dict) else ""
    return name if isinstance(name, str) else ""


def is_table(dataset: str) -> bool:
    """Whether the dataset is a table: by its name, or by the shape of the arrays in an `.npz` file."""
    if dataset.endswith(".npz"):
        return holds_rows(dataset)
    return dataset.endswith(SUFFIXES) or (bool(dataset) and table_parts(dataset) is not None)


def is_adaptive(tables: Tables) -> bool:
    """Whether clients train with another optimiser than SGD."""
    local = tables.get("local", {})
    return isinstance(local, dict) and local.get("optimiser", "sgd") != "sgd"


def with_dataset_defaults(tables: Tables, names: Sequence[str] = ()) -> tuple[Tables, list[str]]:
    """The tables with the dataset's defaults where they say nothing, and those that count, in words.

    `names`: the methods that will run, if not the one in [method].
    """
    result, told, dataset = copy.deepcopy(tables), [], dataset_name(tables)
    own = (TEXT if holds_text(dataset) else TABLE) if is_table(dataset) else OWN_DATA
    usual = DEFAULTS.get(dataset, own)
    chosen = result.get("method", {})
    asked = names or ([chosen.get("name", FedPTR.name)] if isinstance(chosen, dict) else [])
    known = [name for name in asked if isinstance(name, str) and methods.is_known(name)]
    if known and all(methods.find_method(name).one_shot for name in known):
        usual = {**usual, "run.rounds": 1}
    for place, value in {**usual, **(ADAPTIVE if is_adaptive(tables) else {})}.items():
        section, key = place.split(".")
        table = result.setdefault(section, {})
        if isinstance(table, dict) and key not in table:  # what is no table is refused later
            table[key] = value
            if place in SHOWN:
                told.append(count_noun(value, "round") if place == "run.rounds" else f"{key} {value}")
    split = result.get("split")
    if isinstance(split, dict) and split.get("kind") == "users":
        split.setdefault("clients", 0)
    elif dataset not in DEFAULTS and isinstance(split := result.setdefault("split", {}), dict):
        split.setdefault("policy", "repair")  # own data may have a hundred samples, which few draws divide well enough
    if isinstance(chosen, dict):
        for name in known:
            add_method_defaults(result, chosen, name, dataset)
    return result, told


def add_method_defaults(tables: Tables, shared: Settings, name: str, dataset: str) -> None:
    """What a laptop has time for, in the tables of a method whose own defaults are too costly."""
    method, several = methods.find_method(name), tables.setdefault("methods", {})
    wanted = matching_defaults(method, dataset) if issubclass(method, Trajectory) else method.laptop
    own = several.setdefault(name, {}) if wanted and isinstance(several, dict) else None
    for key, value in wanted.items():
        key = ptr_setting_name(method, key)
        if key in method.__dataclass_fields__ and key not in shared and isinstance(own, dict):
            own.setdefault(key, value)


def matching_defaults(method: type[Method], dataset: str) -> Settings:
    """How FedPTR learns its auxiliary data."""
    on_server = method.cost.auxiliary == "server"
    steps = (ON_SERVER if on_server else ON_CLIENTS).get(dataset)
    usual = TABLE_MATCHING if is_table(dataset) else USUAL_MATCHING
    wanted = {**MATCHING.get(dataset, usual), **({"H": steps} if steps else {})}
    if not steps and (not on_server or "matching" in wanted):
        wanted["mtt_every"] = 2 if on_server else 4
    return wanted


def settle_method(tables: Tables) -> Tables:
    """The tables with what [methods.NAME] holds for the chosen method in [method] itself."""
    result = copy.deepcopy(tables)
    chosen, several = result.setdefault("method", {}), result.get("methods", {})
    own = several.pop(chosen.get("name", FedPTR.name), {})
    result["method"] = {**own, **chosen}
    if "methods" in result and not several:
        del result["methods"]
    return result
