"""What a plan has where nobody says otherwise, by dataset: sizes that a laptop trains in minutes.

The defaults of the settings themselves are the paper's, made for tens of thousands of images and a GPU; `--preset
paper` takes those. Digits were tuned over all methods. The other datasets follow the scale `cpu` of the recipes, whose
learning rate of 0.03 suits all methods (results/README.md).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from fedptr import methods
from fedptr.methods.fedptr import FedPTR
from fedptr.methods.ptr.combine import ptr_setting_name
from fedptr.methods.ptr.trajectory import Trajectory
from fedptr.runs.laptop_settings import (
    DEFAULTS,
    MATCHING,
    ON_CLIENTS,
    ON_SERVER,
    OWN_DATA,
    SHOWN,
    TABLE,
    TABLE_MATCHING,
    USUAL_MATCHING,
    Settings,
)
from fedptr.runs.plan import DataPlan, Tables


def dataset_name(tables: Tables) -> str:
    data = tables.get("data", {})
    name = data.get("name", DataPlan().name) if isinstance(data, dict) else ""
    return name if isinstance(name, str) else ""


def is_csv(dataset: str) -> bool:
    """Whether the name is that of a table; of other files only their content tells."""
    return dataset.endswith(".csv")


def with_dataset_defaults(tables: Tables, names: Sequence[str] = ()) -> tuple[Tables, list[str]]:
    """The tables with the dataset's defaults where they say nothing, and those that count, in words.

    `names`: the methods that will run, if not the one in [method].
    """
    result, told, dataset = copy.deepcopy(tables), [], dataset_name(tables)
    for place, value in DEFAULTS.get(dataset, TABLE if is_csv(dataset) else OWN_DATA).items():
        section, key = place.split(".")
        table = result.setdefault(section, {})
        if isinstance(table, dict) and key not in table:  # what is no table is refused later
            table[key] = value
            if place in SHOWN:
                told.append(f"{value} rounds" if place == "run.rounds" else f"{key} {value}")
    chosen = result.get("method", {})
    if isinstance(chosen, dict):
        for name in names or [chosen.get("name", FedPTR.name)]:
            if isinstance(name, str) and methods.is_known(name):
                add_matching_defaults(result, chosen, name, dataset)
    return result, told


def add_matching_defaults(tables: Tables, shared: Settings, name: str, dataset: str) -> None:
    """How FedPTR learns its auxiliary data, in the tables of a method that does."""
    method, several = methods.find_method(name), tables.setdefault("methods", {})
    if not issubclass(method, Trajectory) or not isinstance(several, dict):
        return
    own = several.setdefault(name, {})
    on_server = method.cost.auxiliary == "server"
    steps = (ON_SERVER if on_server else ON_CLIENTS).get(dataset)
    usual = TABLE_MATCHING if is_csv(dataset) else USUAL_MATCHING
    wanted = {**MATCHING.get(dataset, usual), **({"H": steps} if steps else {})}
    if not steps and not on_server:
        wanted["mtt_every"] = 4
    for key, value in wanted.items():
        key = ptr_setting_name(method, key)
        if key in method.__dataclass_fields__ and key not in shared and isinstance(own, dict):
            own.setdefault(key, value)


def settle_method(tables: Tables) -> Tables:
    """The tables with what [methods.NAME] holds for the chosen method in [method] itself."""
    result = copy.deepcopy(tables)
    chosen, several = result.setdefault("method", {}), result.get("methods", {})
    own = several.pop(chosen.get("name", FedPTR.name), {})
    result["method"] = {**own, **chosen}
    if "methods" in result and not several:
        del result["methods"]
    return result
