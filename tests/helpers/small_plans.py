"""Plans of three clients with a few digits each, and what they come to in-process."""

from __future__ import annotations

import itertools
from typing import Any

from small_world import BRIEF

from fedptr.core.federation import Run, federate
from fedptr.core.method import Method
from fedptr.methods import all_methods
from fedptr.runs import plan as planning
from fedptr.runs.experiment import prepare_experiment
from fedptr.runs.plan import Plan
from fedptr.runs.summary import weights_sha256

TABLES: dict[str, Any] = {
    "run": {"rounds": 4, "on_failure": "drop"},
    "data": {"subset": 120},
    "split": {"clients": 3, "alpha": 0.3, "min_size": 8},
    "model": {"name": "mlp", "width": 8},
    "local": {"batch": 8, "lr": 0.05, "decay": 0.9},
    "machine": {"threads": 1, "device": "cpu"},
}


def may_stay(name: str) -> bool:
    """Whether there are rounds, perhaps all, in which the method's global model does not change; or only one."""
    return all_methods()[name].one_shot or all_methods()[name].silent is not Method.silent


def plan_for(name: str = "scaffold", clients: int = 3, **run: Any) -> Plan:
    known = all_methods()[name].__dataclass_fields__
    method = {"name": name, **{key: value for key, value in BRIEF.items() if key in known}}
    linear = {"model": {"name": "linear"}} if all_methods()[name].needs_linear else {}
    tables = {**TABLES, **linear, "run": {**TABLES["run"], **run}, "split": {**TABLES["split"], "clients": clients}}
    return planning.check_plan({**tables, "method": method})


def in_process(plan: Plan) -> list[Run]:
    e = prepare_experiment(plan)
    asked = (e.test, plan.run, plan.local, plan.faults)
    return list(federate(plan.method, e.task, e.clients, *asked, privacy=plan.privacy))


def moving(runs: list[Run]) -> str:
    """The hash of the final weights, which are finite and did not stand still."""
    assert all(bool(run.w.isfinite().all()) for run in runs)
    assert not any(bool((a.w == b.w).all()) for a, b in itertools.pairwise(runs))
    return weights_sha256(runs[-1])
