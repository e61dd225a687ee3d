"""Which settings make a run another experiment."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from fedptr.runs.extend import with_rounds
from fedptr.runs.plan import Plan

ASIDE = ("machine", "output")  # sections and settings that do not make a run another experiment
QUIET = ("run.seed", "run.checkpoint_every", "run.on_failure")
ANY = 0  # number of rounds


def lineage(plan: Plan) -> str:
    """The fingerprint without the number of rounds: a shorter run is the beginning of a longer one.

    Unless it ends with an evaluation that the longer one would not make.
    """
    return fingerprint(plan if plan.run.rounds % plan.run.eval_every else with_rounds(plan, ANY))


def fingerprint(plan: Plan) -> str:
    """Of what makes a run another experiment: all settings but the seed and the machine, where they are no defaults.

    So a setting that a later version adds, with the old behaviour as its default, changes no fingerprint.
    """
    usual, method = Plan(), type(plan.method)()
    told = {"method.name": plan.method.name}
    for section, table in asdict(plan).items():
        default = asdict(method if section == "method" else getattr(usual, section))
        if section not in ASIDE:
            told |= {f"{section}.{key}": value for key, value in table.items() if value != default[key]}
    for name in QUIET:
        told.pop(name, None)
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]
