"""A plan: everything that decides a run, as checked TOML.

[run]      rounds, participation, seed …      fedptr.core.federation.Rounds
[data]     which dataset, how much of it      DataPlan
[split]    how it is spread over clients      fedptr.data.partition.SplitPlan
[model]    which model                        fedptr.models.networks.ModelPlan
[local]    how clients train                  fedptr.core.local_training.Local
[faults]   simulated dropouts, stragglers     fedptr.core.faults.Faults
[privacy]  clipping and noise                 fedptr.privacy.differential.Privacy
[machine]  device and threads                 MachinePlan
[output]   what a run folder gets besides     OutputPlan
[method]   name and hyper-parameters          one of fedptr.methods
[methods.NAME]  hyper-parameters a method has whenever it is chosen, for `fedptr compare`
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import tomli_w

from fedptr import methods
from fedptr.compute.workload import MachinePlan
from fedptr.core.faults import Faults
from fedptr.core.federation import Rounds, check_local, check_participation
from fedptr.core.local_training import Local
from fedptr.core.method import Method
from fedptr.data.partition import SplitPlan, check_clients
from fedptr.data.tokens import TextPlan
from fedptr.errors import UserError
from fedptr.methods.fedptr import FedPTR
from fedptr.models.networks import ModelPlan
from fedptr.privacy.differential import Privacy
from fedptr.regular_files import read_bytes
from fedptr.settings import baseline_of, build_settings, format_value, setting, unknown_name_error

Tables = dict[str, Any]
MOST = 1 << 20  # bytes of a plan; those of recipes and comparisons have a few thousand


@dataclass(frozen=True)
class DataPlan:
    name: str = setting(
        "digits",
        "a dataset (see `fedptr data list`), or a path to an .npz, .csv, .parquet or image folder",
        example="cifar10",
    )
    dir: str = setting("", "a folder of datasets to look into first", affects="nothing", example="datasets")
    subset: int = setting(0, "take a class-balanced subset of this many training images; 0 = all", example=2000, ge=0)
    subset_test: int = setting(
        0, "the same of the test images; 0 = as many as subset, or all if there are fewer", example=1000, ge=0
    )
    seed: int = setting(0, "seed of the subset", ge=0)
    number: int = setting(0, "which of the subsets of this size and seed, which share no image; from 0", ge=0)
    pool: Literal["train", "all"] = setting(
        "train", "what a split gives to clients: training images, or all = these followed by the test images"
    )
    features: str = setting(
        "",
        "a finished run's folder: train on the features of its model instead of the images",
        example="runs/fedavg-digits-seed0",
    )
    validation: float = setting(
        0.0,
        "hold out this part of the training samples to test on instead of the test set, which is not looked at",
        example=0.2,
        ge=0,
        lt=1,
    )
    task: Literal["auto", "classification", "regression", "multi-label"] = setting(
        "auto",
        "what to learn of own data: auto = regression where labels are numbers with fractions, multi-label where they "
        "are rows of zeros and ones, else classification",
    )
    vocabulary: int = setting(10_000, "of texts: how many numbers words are hashed to", ge=2, le=65_536)
    length: int = setting(64, "of texts: words and punctuation marks; longer ones are cut", ge=1, le=4096)

    @property
    def text(self) -> TextPlan:
        return TextPlan(self.vocabulary, self.length)


@dataclass(frozen=True)
class OutputPlan:
    """What a run folder gets besides; it may be changed before a resume."""

    pictures: int | Literal["auto"] = setting(
        "auto",
        "save pictures of learned images every N rounds; 0 = never, auto = about 20 times over the run",
        affects="nothing",
        ge=0,
    )
    sets: int = setting(
        0,
        "save all learned sets, auxiliary or sent, after round 1, every N rounds and the last; 0 = never",
        affects="nothing",
        example=10,
        ge=0,
    )
    best: bool = setting(False, "keep the weights of the most accurate round too", affects="nothing")


@dataclass(frozen=True)
class Plan:
    run: Rounds = field(default_factory=Rounds)
    data: DataPlan = field(default_factory=DataPlan)
    split: SplitPlan = field(default_factory=SplitPlan)
    model: ModelPlan = field(default_factory=ModelPlan)
    local: Local = field(default_factory=Local)
    faults: Faults = field(default_factory=Faults)
    privacy: Privacy = field(default_factory=Privacy)
    machine: MachinePlan = field(default_factory=MachinePlan)
    output: OutputPlan = field(default_factory=OutputPlan)
    method: Method = field(default_factory=FedPTR)

    @property
    def personalised(self) -> bool:
        """Whether clients use models of their own: those of the method, or with parts of their own."""
        return self.method.personalised or bool(self.model.local)

    def toml(self) -> str:
        """The complete plan; running it repeats the run."""
        return tomli_w.dumps(self.tables())

    def tables(self) -> Tables:
        tables: Tables = {f.name: asdict(getattr(self, f.name)) for f in fields(self)}
        tables["method"] = {"name": methods.method_address(type(self.method)), **tables["method"]}
        return tables


SECTIONS = {f.name: f for f in fields(Plan)}


def load_plan(out: Path) -> Plan:
    """The plan of a run folder. It is complete, so a setting that it does not name is one that came later."""
    if not (out / "plan.toml").is_file():
        raise UserError(f"{out} holds no plan.toml, so it is no run's folder; start one with `fedptr run`")
    return check_plan(with_baselines(read_plan(out / "plan.toml")))


def with_rounds(plan: Plan, rounds: int) -> Plan:
    return replace(plan, run=replace(plan.run, rounds=rounds))


def read_plan(path: str | Path) -> Tables:
    """The tables of a TOML file, not yet checked."""
    try:
        content = read_bytes(path, MOST)
    except OSError as error:
        raise UserError(f"plan {path} cannot be read ({error.strerror}); check the path") from None
    except ValueError as error:
        raise UserError(f"plan {str(path)!r} cannot be read ({error}); check the path") from None
    return decode_plan(content, path)


def decode_plan(content: bytes, path: str | Path) -> Tables:
    """The same of its content."""
    try:
        text = content.decode("utf-8-sig")  # some editors begin a file with a byte-order mark
    except ValueError:
        raise UserError(f"plan {path} is not UTF-8 text; a plan is a TOML file") from None
    return parse_toml(text.replace("\r\n", "\n"), f"plan {path}")


def parse_toml(text: str, what: str = "the plan") -> Tables:
    """The tables of a TOML text."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not TOMLDecodeError alone: a number may have too many digits
        raise UserError(f"{what} is not valid TOML: {error}") from None


def assign_settings(tables: Tables, assignments: Iterable[tuple[str, str]]) -> Tables:
    """The tables with `section.key = value` laid over them; a value is TOML, or else plain text."""
    result = copy.deepcopy(tables)
    for place, text in assignments:
        section, _, key = place.rpartition(".")
        if not section or not key:
            raise UserError(f"--set {place}={text} names no section; write it as section.key=value, e.g. run.rounds=20")
        table = result
        for part in section.split("."):
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise UserError(f"--set {place}: {section} is a value, not a section")
        table[key] = parse_value(text)
    return result


def parse_value(text: str) -> Any:
    """`3` is a number, `true` a truth value, `fedptr` text: quotes may be left out."""
    try:
        return tomllib.loads(f"value = {text}\n")["value"] if "\n" not in text else text
    except (ValueError, RecursionError):
        return text


def check_plan(tables: Mapping[str, Any]) -> Plan:
    """A plan from TOML tables; whatever is wrong is said in one sentence that names its place."""
    check_sections(tables)
    parts: dict[str, Any] = {}
    for name in SECTIONS:
        if name != "method":
            cls: Any = SECTIONS[name].default_factory
            parts[name] = build_settings(cls, tables.get(name, {}), name)
    plan = Plan(**parts, method=_method(tables))
    if plan.method.one_shot:
        plan = with_rounds(plan, 1)  # whatever the methods beside it have
    check_clients(plan.split)
    check_participation(plan.method, plan.run)
    check_local(plan.method, plan.local)
    plan.privacy.check(plan.method, plan.run)
    if plan.data.validation and plan.data.pool == "all" and not plan.split.file:
        raise UserError(
            'data.validation holds out samples that data.pool = "all" gives back to the clients; set data.pool to '
            '"train", or data.validation to 0'
        )
    return plan


def check_sections(tables: Mapping[str, Any]) -> None:
    """Whether all tables are sections of a plan, whatever is in them."""
    for name, table in tables.items():
        if name != "methods" and name not in SECTIONS:
            raise unknown_name_error(name, name, [*SECTIONS, "methods"], "a section of a plan")
        if not isinstance(table, Mapping):
            raise UserError(f"{name} must be a section like [{name}], not {format_value(table)}")
    for name, table in tables.get("methods", {}).items():
        if not methods.is_known(name):
            raise methods.unknown_method_error(f"methods.{name}", name)
        if not isinstance(table, Mapping):
            raise UserError(f"methods.{name} must be a section like [methods.{name}], not {format_value(table)}")
        build_settings(methods.find_method(name), table, f"methods.{name}")


def _method(tables: Mapping[str, Any]) -> Method:
    chosen = dict(tables.get("method", {}))
    name = chosen.pop("name", FedPTR.name)
    if not isinstance(name, str):
        raise UserError(f"method.name must be text, not {format_value(name)}")
    if not methods.is_known(name):
        raise UserError(f"method.name: {methods.unknown_method_error(name, name)}")
    return build_settings(methods.find_method(name), {**tables.get("methods", {}).get(name, {}), **chosen}, "method")


def tables_for_method(tables: Tables, name: str) -> Tables:
    """The tables with another method; shared `[method]` settings go to those that have them, before their own."""
    known = {f.name for f in fields(methods.find_method(name))}
    shared = {key: value for key, value in tables.get("method", {}).items() if key in known}
    return {**tables, "method": {"name": name, **shared, **tables.get("methods", {}).get(name, {})}}


def with_baselines(tables: Tables, names: Sequence[str] = ()) -> Tables:
    """Tables of an earlier version: where a default has changed since, what they do not name is the one of before."""
    return _with_changed_defaults(tables, names, baseline_of)


def with_defaults(tables: Tables, names: Sequence[str]) -> Tables:
    """The reverse, for tables that are kept: where a default has changed, today's is written out."""
    return _with_changed_defaults(tables, names, lambda spec: spec.default)


def _with_changed_defaults(tables: Tables, names: Sequence[str], value: Callable[[Field[Any]], Any]) -> Tables:
    """`names`: the methods that the tables are for, if not the one in [method]."""
    chosen = tables.get("method", {})
    if not names:
        name = chosen.get("name", FedPTR.name) if isinstance(chosen, Mapping) else None
        names = [name] if isinstance(name, str) and methods.is_known(name) else []
    places: list[tuple[tuple[str, ...], Any, Any]] = [
        ((section,), spec.default_factory, {}) for section, spec in SECTIONS.items() if section != "method"
    ]
    places += [(("methods", name), methods.find_method(name), chosen) for name in names]
    result = copy.deepcopy(tables)
    for path, cls, shared in places:
        for spec in fields(cls):
            if baseline_of(spec) != spec.default and not (isinstance(shared, Mapping) and spec.name in shared):
                table = result
                for part in path:
                    table = table.setdefault(part, {}) if isinstance(table, dict) else table
                if isinstance(table, dict):  # what is not is refused by `check`
                    table.setdefault(spec.name, value(spec))
    return result
