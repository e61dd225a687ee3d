"""Which runs are the same: the one definition that resuming, recipes and the report read.

Every setting declares what it affects (`fedptr.settings.setting`):

    result     what comes out
    cost       how it is computed: rounding and seconds
    nothing    no bit of the result, as where its clients visit and how often it is saved

A run is resumed if nothing changed that affects its result or its cost. Recipes share runs with the same result, the
seed and the number of rounds aside. The report averages over runs that differ in their seeds alone.

A method is known by its name, and one that has no name here by its module and class: two plug-ins of the same name are
two methods.

A setting that has its baseline, the default it had when it was added, is not part of a run's identity. So neither a
new setting nor a changed default turns a finished run into another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import Field, field, fields
from pathlib import Path
from typing import Any

import tomli_w

from fedptr.core.learning_rate import depends_on_rounds
from fedptr.errors import UserError
from fedptr.methods import method_address
from fedptr.regular_files import read_text
from fedptr.runs.plan import Plan, load_plan, parse_toml, with_rounds
from fedptr.settings import Effect, baseline_of, effect_of

Settings = dict[str, Any]  # section.key -> value
SEEDS = ("run.seed", "split.seed", "data.seed")
METHOD, NAME = "method.name", field()  # a result of its own, and without a baseline: an identity always has it
ANY = 0  # number of rounds


def all_settings(plan: Plan) -> Iterator[tuple[str, Any, Field[Any]]]:
    """Every setting: section.key, its value, and its declaration."""
    for section in fields(plan):
        part = getattr(plan, section.name)
        if section.name == "method":
            yield METHOD, method_address(type(plan.method)), NAME
        for spec in fields(part):
            yield f"{section.name}.{spec.name}", getattr(part, spec.name), spec


def settings_affecting(plan: Plan, *effects: Effect) -> Settings:
    """The value of every setting that affects one of these."""
    return {place: value for place, value, spec in all_settings(plan) if effect_of(spec) in effects}


def identity(plan: Plan, *effects: Effect) -> Settings:
    """The same, without the settings that are at their baseline; by default of what affects the result."""
    usual = {place: baseline_of(spec) for place, _, spec in all_settings(plan)}
    told = settings_affecting(plan, *(effects or ("result",)))
    return {place: value for place, value in told.items() if value != usual[place]}


def shared_by_seeds(plan: Plan) -> Settings:
    """What runs have in common over which a mean is taken."""
    told = settings_affecting(plan, "result", "cost")
    return {place: value for place, value in told.items() if place not in SEEDS}


def fingerprint(plan: Plan) -> str:
    """Of the result, whatever the seed: the same in every version of fedptr."""
    told = identity(plan)
    told.pop("run.seed", None)
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]


def lineage(plan: Plan) -> str:
    """The fingerprint without the number of rounds: a shorter run is the beginning of a longer one.

    Unless it ends with an evaluation that the longer one would not make, or its learning rates depend on its length.
    """
    alone = plan.run.rounds % plan.run.eval_every or depends_on_rounds(plan.local)
    return fingerprint(plan if alone else with_rounds(plan, ANY))


def identity_text(plan: Plan) -> str:
    """What a checkpoint keeps of its plan: all that may not have changed when the run is resumed."""
    return json.dumps(identity(plan, "result", "cost"), sort_keys=True)


def check_same_plan(out: Path, plan: Plan, header: Mapping[str, str]) -> None:
    """Refuses to resume from a checkpoint of another plan, and names the settings that changed."""
    kept = [header[name] for name in ("plan", "plan_before") if name in header]  # before: see fedptr/runs/extend.py
    if not known_names(out, plan).intersection(kept):
        told = min(filter(None, (changed_settings(text, plan) for text in kept)), key=len, default="")
        words = f": {told}" if told else ""
        raise UserError(f"the plan of {out} changed since the run was started{words}; undo that, or start another run")


def known_names(out: Path, plan: Plan) -> set[str]:
    """How the checkpoints of a run folder may name its plan."""
    text = identity_text(plan)
    return {text, digest_before_0_2(out / "plan.toml")} if identity_text(load_plan(out)) == text else {text}


def changed_settings(before: str, plan: Plan) -> str:
    """In what a plan differs from the one with this identity, in words; empty where that is only a hash.

    >>> changed_settings(identity_text(Plan()), with_rounds(Plan(), 60))
    'run.rounds was 50 and is 60'
    """
    if not before.startswith("{"):
        return ""
    told = json.loads(before)
    if told[METHOD] != (method := method_address(type(plan.method))):
        return f"{METHOD} was {told[METHOD]} and is {method}"
    both = (
        (place, told.get(place, baseline_of(spec)), value)
        for place, value, spec in all_settings(plan)
        if effect_of(spec) != "nothing"
    )
    return ", ".join(f"{place} was {was} and is {value}" for place, was, value in both if was != value)


def digest_before_0_2(path: Path) -> str:
    """What a checkpoint kept of its plan before version 0.2: a hash of plan.toml without what changed no result.

    It is computed from the file, which has the settings of the version that wrote it.
    """
    tables = parse_toml(read_text(path, encoding="utf-8-sig"))
    tables.pop("output", None)
    engine = ("engine", "ray_address", "workers")
    tables["machine"] = {name: value for name, value in tables.get("machine", {}).items() if name not in engine}
    # Settings that came after the first version were left out where they had their default.
    later: dict[str, Settings] = {"data": {"pool": "train", "number": 0}}
    later["privacy"] = {
        "clip": 0.0, "noise": 1.0, "delta": 1e-5, "randomness": "system", "secure": False, "range": 8.0
    }  # fmt: skip
    for section, usual in later.items():
        if section in tables:
            kept = {name: value for name, value in tables[section].items() if value != usual.get(name)}
            tables[section] = kept
    text = tomli_w.dumps({section: table for section, table in tables.items() if table})
    return hashlib.sha256(text.encode()).hexdigest()
