"""A plan is right, or one sentence says what is wrong with it and where."""

from __future__ import annotations

import functools
import json
import tomllib
from dataclasses import fields
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import pytest
from every_setting import every_setting
from hypothesis import given, settings
from hypothesis import strategies as st

from fedptr.cli.main import build_parser
from fedptr.cli.options import DATA_OPTIONS, RUN_OPTIONS
from fedptr.cli.plan_options import build_tables
from fedptr.errors import UserError
from fedptr.methods import all_methods
from fedptr.runs.compare import build_plans
from fedptr.runs.dataset_defaults import with_dataset_defaults
from fedptr.runs.plan import SECTIONS, Plan, assign_settings, check_plan, parse_value, read_plan


def plan_of(*argv: str) -> Plan:
    """All that `fedptr run` does before it loads data."""
    return check_plan(build_tables(build_parser().parse_args(["run", *argv])))


@functools.cache
def toml_of(*argv: str) -> str:
    return plan_of(*argv).toml()


def refusal(*argv: str) -> str:
    with pytest.raises(UserError) as caught:
        plan_of(*argv)
    return str(caught.value)


def test_no_plan_is_the_default_plan() -> None:
    assert plan_of("--preset", "paper") == Plan()
    assert plan_of() == check_plan(with_dataset_defaults({})[0])
    assert Plan().method.name == "fedptr"


def test_a_written_plan_is_complete_and_read_back(tmp_path: Path) -> None:
    plan = plan_of("--method", "scaffold", "--seed", "7", "--set", "method.option=I", "--set", "local.lr=3e-4")
    path = tmp_path / "plan.toml"
    path.write_text(plan.toml(), encoding="utf-8")
    assert plan_of(str(path)) == plan
    written = tomllib.loads(plan.toml())
    for name in SECTIONS:
        assert {f.name for f in fields(getattr(plan, name))} | ({"name"} if name == "method" else set()) == set(
            written[name]
        )


def test_order_of_precedence(tmp_path: Path) -> None:
    """The defaults, then [methods.NAME], then the plan, then options and --set, of which the later wins."""
    path = tmp_path / "plan.toml"
    path.write_text("[run]\nrounds = 3\nseed = 4\n[methods.fedptr]\nlam = 0.5\nH = 3\n[method]\nH = 4\n", "utf-8")
    plan = plan_of(str(path), "--rounds", "5", "--set", "method.R=6")
    assert (plan.run.rounds, plan.run.seed, plan.run.participation) == (5, 4, 1.0)
    assert (plan.method.lam, plan.method.H, plan.method.R) == (0.5, 4, 6)  # type: ignore[attr-defined]
    assert plan_of(str(path), "--rounds", "5", "--set", "run.rounds=6").run.rounds == 6
    assert plan_of(str(path), "--set", "run.rounds=6", "--rounds", "5").run.rounds == 5
    assert plan_of(str(path), "--set", "run.rounds=6", "--rounds", "5", "--set", "run.rounds=7").run.rounds == 7


def test_a_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("\ufeff[run]\nrounds = 3\n", encoding="utf-8")
    assert plan_of(str(path)).run.rounds == 3


def test_options_are_laid_over_a_copy() -> None:
    tables = {"methods": {"fedptr": {"lam": 0.5}}, "run": {"rounds": 1}}
    assign_settings(tables, [("methods.fedptr.lam", "0"), ("run.rounds", "2")])
    assert tables == {"methods": {"fedptr": {"lam": 0.5}}, "run": {"rounds": 1}}


def test_set_reaches_every_field() -> None:
    places = every_setting()
    assert len(places) > 100
    for method, place, value in places:
        section, key = place.split(".")
        for text in {
            json.dumps(value),
            value if isinstance(value, str) else json.dumps(value),
        }:  # quotes may be left out
            # Differential privacy is refused where clients do not count alike.
            always = (
                "--preset",
                "paper",
                "--method",
                method,
                *(("--set", "method.weighting=uniform") if section == "privacy" else ()),
            )
            plan = plan_of(*always, "--set", f"{place}={text}")
            got = getattr(getattr(plan, section), key)
            assert got == value, f"{place}={text} gave {got!r}"
            assert type(got) is type(value)
            changed = tomllib.loads(plan.toml())
            assert changed[section].pop(key) == value
            before = tomllib.loads(toml_of(*always))
            before[section].pop(key)
            assert changed == before, f"{place} changed something else too"


def test_every_option_reaches_its_setting() -> None:
    values = {
        "D": "x",
        "DIR": "x",
        "P": "iid",
        "FILE": "x",
        "M": "mlp",
        "DEV": "cpu",
        "WHEN": "off",
        "TASK": "regression",
        "A": 0.5,
        "F": 0.5,
        "SCORE": 0.5,
        "O": "adamw",
        "SCHEDULE": "cosine",
    }
    for option, (place, metavar, _) in {**DATA_OPTIONS, **RUN_OPTIONS}.items():
        value = values.get(metavar, 3)
        section, key = place.split(".")
        assert getattr(getattr(plan_of(option, str(value)), section), key) == value
        assert getattr(getattr(plan_of(f"{option}={value}"), section), key) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("3.0", 3.0), ("1e-3", 1e-3), ("true", True), ("fedptr", "fedptr"), ('"3"', "3"), ("", ""),
        ("a b", "a b"), ("[1]", [1]), ("{a=1}", {"a": 1}), ("1\n[x]", "1\n[x]"), ("0x10", 16), ("1_000", 1000),
        ("9" * 5000, "9" * 5000), ("[" * 5000, "[" * 5000), ("2020-01-01", date(2020, 1, 1)), ("'\\'", "\\"),
    ],
)  # fmt: skip
def test_values_are_toml_or_text(text: str, value: object) -> None:
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[rnu]", "rnu is not a section of a plan; did you mean run?"),
        ("[zzz]", "zzz is not a section of a plan; choose from: run, data, split"),
        ("rounds = 3", "rounds is not a section of a plan"),
        ("run = 3", "run must be a section like [run], not 3"),
        ("[[run]]\nrounds = 1", "run must be a section like [run], not [{'rounds': 1}]"),
        ("[run]\nrouns = 3", "run.rouns is not a setting; did you mean run.rounds?"),
        ("[run]\n'' = 3", "run. is not a setting; choose from: rounds"),
        ("[run]\nrounds = '3'", "run.rounds must be a whole number, not '3'"),
        ("[run]\nrounds = 3.0", "run.rounds must be a whole number, not 3.0"),
        ("[run]\nrounds = true", "run.rounds must be a whole number, not True"),
        ("[run]\nrounds = 0", "run.rounds must be at least 1, not 0"),
        ("[run]\nrounds = []", "run.rounds must be a whole number, not []"),
        ("[run.rounds]", "run.rounds must be a whole number, not {}"),
        ("[run]\nrounds = 1979-05-27", "run.rounds must be a whole number, not datetime.date(1979, 5, 27)"),
        ("[run]\nrounds = 9223372036854775808", "run.rounds must be at most 2147483647"),
        (f"[run]\nrounds = {'9' * 5000}", "is not valid TOML: Exceeds the limit"),
        (f"[run]\nrounds = 0x{'f' * 5000}", "run.rounds must be at most 2147483647, not a number that long"),
        (f"[run]\nrounds = [0x{'f' * 5000}]", "run.rounds must be a whole number, not a number that long"),
        ("[run]\nseed = -1", "run.seed must be at least 0, not -1"),
        ("[run]\nparticipation = nan", "run.participation must be a number, not nan"),
        ("[run]\nparticipation = inf", "run.participation must be a number, not inf"),
        ("[run]\nparticipation = -0.0", "run.participation must be more than 0, not -0.0"),
        ("[run]\nparticipation = 1.01", "run.participation must be at most 1, not 1.01"),
        ("[run]\nparticipation = true", "run.participation must be a number, not True"),
        (f"[local]\nlr = 1{'0' * 400}", "local.lr must be a number, not 1000"),
        ("[run]\nsampling = 'coin'", "run.sampling must be one of: fixed, bernoulli, not 'coin'"),
        ("[run]\nsampling = ''", "run.sampling must be one of: fixed, bernoulli, not ''"),
        ("[local]\nrecord_gamma = 1", "local.record_gamma must be true or false, not 1"),
        ("[data]\nname = 3", "data.name must be text, not 3"),
        ("[split]\nseed = 4294967296", "split.seed must be less than 4294967296, not 4294967296"),
        ("[model]\ndepth = 9", "model.depth must be at most 8, not 9"),
        ("[method]\nname = 'fedpr'", "method.name: fedpr is not a method; did you mean fedptr?"),
        ("[method]\nname = ''", "method.name: an empty name is not a method; choose from: fedavg"),
        ("[method]\nname = 3", "method.name must be text, not 3"),
        ("[method]\nname = []", "method.name must be text, not []"),
        ("[method]\nlma = 3", "method.lma is not a setting; did you mean method.lam?"),
        ("[method]\nadaptive_eps = 'big'", 'method.adaptive_eps must be a number or "auto", not \'big\''),
        ("[method]\nadaptive_eps = 0", "method.adaptive_eps must be more than 0, not 0"),
        ("[method]\nname = 'fedavg'\nmu = 1", "method.mu is not a setting; choose from: weighting"),
        ("methods = 3", "methods must be a section like [methods], not 3"),
        ("[methods]\nfedptr = 3", "methods.fedptr must be a section like [methods.fedptr], not 3"),
        ("[methods.fedpr]", "methods.fedpr is not a method; did you mean methods.fedptr?"),
        ("[methods.fedprox]\nmuu = 3", "methods.fedprox.muu is not a setting; did you mean methods.fedprox.mu?"),
        ("[run", "is not valid TOML: Expected ']'"),
        ("[run]\nrounds = 1\nrounds = 2", "is not valid TOML: Cannot overwrite"),
        ("a = " + "[" * 3000, "is not valid TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_plan(toml: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(toml, encoding="utf-8")
    message = refusal(str(path))
    assert words in message
    assert len(message) < 400
    if "TOML" in words:
        assert str(path) in message


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--set", "run.rounds"], "--set run.rounds has no value; write it as section.key=value"),
        (["--set", "rounds=3"], "--set rounds=3 names no section; write it as section.key=value"),
        (["--set", ".rounds=3"], "--set .rounds=3 names no section"),
        (["--set", "run.=3"], "--set run.=3 names no section"),
        (["--set", "=3"], "--set =3 names no section"),
        (["--set", ""], "has no value"),
        (["--set", "run.rounds.x=3"], "run.rounds must be a whole number, not {'x': 3}"),
        (["--set", "run.rounds=1", "--set", "run.rounds.x=3"], "--set run.rounds.x: run.rounds is a value"),
        (["--set", "run.rounds=1=2"], "run.rounds must be a whole number, not '1=2'"),
        (["--set"], "argument --set: expected one argument"),
        (["--rounds", "three"], "run.rounds must be a whole number, not 'three'"),
        (["--rounds", ""], "run.rounds must be a whole number, not ''"),
        (["--rouns", "3"], "--rouns is not an option of `fedptr run`; did you mean --rounds?"),
        (["--rouns=3"], "--rouns is not an option of `fedptr run`; did you mean --rounds?"),
        (["--round", "3"], "--round is not an option of `fedptr run`; did you mean --rounds?"),
        (["a.toml", "b.toml"], "unrecognized arguments: b.toml; see `fedptr --help`"),
        (["--partition", "dirichle"], "split.kind must be one of: dirichlet"),
        (["--method", "fedprx"], "method.name: fedprx is not a method; did you mean fedprox?"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_options(argv: list[str], words: str) -> None:
    assert words in refusal(*argv)


def test_plans_that_are_no_files(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory); check the path" in refusal(str(tmp_path / "none.toml"))
    assert "cannot be read (Is a directory)" in refusal(str(tmp_path))
    assert "cannot be read (File name too long)" in refusal("x" * 5000)
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    assert "is not UTF-8 text; a plan is a TOML file" in refusal(str(tmp_path / "binary"))
    (tmp_path / "utf16").write_text("[run]\n", encoding="utf-16")
    assert "is not UTF-8 text" in refusal(str(tmp_path / "utf16"))
    assert "cannot be read (embedded null byte)" in refusal("a\0b")


def test_own_paths_become_absolute_and_known_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that happens to be called like a dataset must not take its place."""
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "cifar10", "mine"):
        (tmp_path / name).mkdir()
    assert plan_of("--dataset", "digits").data.name == "digits"
    assert plan_of("--dataset", "cifar10").data.name == "cifar10"
    assert plan_of("--dataset", "mine").data.name == str(tmp_path / "mine")
    assert plan_of("--dataset", "missing").data.name == "missing"
    (tmp_path / "s.json").touch()
    assert plan_of("--split", "s.json").split.file == str(tmp_path / "s.json")


def test_a_comparison_gives_each_method_its_own(tmp_path: Path) -> None:
    tables = {
        "run": {"seed": 3},
        "method": {"name": "fedavg", "mu": 0.5, "H": 2, "lam": 0.7},
        "methods": {"fedprox": {"mu": 0.1}, "feddc": {"alpha": 0.3}},
    }
    made = build_plans(tables, ["fedavg", "fedprox", "naive", "fedptr"], 2)
    method = {name: seeds[1].method for name, seeds in made.items()}
    assert [plan.run.seed for plan in made["fedptr"]] == [3, 4]
    assert all(method[name].name == name for name in made)
    assert method["fedprox"].mu == 0.1  # type: ignore[attr-defined]  # its own setting goes before the shared one
    assert method["naive"].mu == 0.5  # type: ignore[attr-defined]
    assert method["fedptr"].H == method["naive"].H == 2  # type: ignore[attr-defined]
    assert method["fedptr"].lam == 0.7  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"method": {"mu": 1}}, "method.mu is not a setting of fedavg or fedptr; did you mean method.m"),
        ({"method": {"lam": -1}}, "method.lam must be at least 0, not -1"),
        ({"method": 5}, "method must be a section like [method], not 5"),
        ({"run": 5}, "run must be a section like [run], not 5"),
        ({"methods": 5}, "methods must be a section"),
        ({"methods": {"fedptr": 5}}, "methods.fedptr must be a section"),
        ({"methods": {"fedprox": {"lam": 1}}}, "methods.fedprox.lam is not a setting"),
        ({"run": {"seed": 2**63 - 1}}, "run.seed must be less than 9223372036854775808"),
    ],
)
def test_what_is_wrong_with_a_comparison(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        build_plans(tables, ["fedavg", "fedptr"], 2)
    assert words in str(caught.value)


# Rubbish: nothing but a plan or a UserError may come of it.

scalars = (
    st.none() | st.booleans() | st.integers() | st.integers(min_value=2**62) | st.floats()
    | st.text(max_size=8) | st.dates() | st.times() | st.datetimes() | st.sampled_from([*all_methods(), "auto", "iid"])
)  # fmt: skip
names = st.sampled_from([place.split(".")[1] for _, place, _ in every_setting()] + ["name"]) | st.text(max_size=5)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(names, v, max_size=3), max_leaves=6)
sections = st.sampled_from([*SECTIONS, "methods"]) | st.text(max_size=5)
tables_ = st.dictionaries(sections, values | st.dictionaries(names, values, max_size=4), max_size=4)


def plan_or_refusal(tables: dict[str, Any]) -> None:
    try:
        plan = check_plan(tables)
    except UserError:
        return
    assert isinstance(plan, Plan)
    assert check_plan(tomllib.loads(plan.toml())) == plan


@settings(max_examples=300, deadline=None)
@given(tables_)
def test_rubbish_tables(tables: dict[str, Any]) -> None:
    plan_or_refusal(tables)


@settings(max_examples=200, deadline=None)
@given(tables_, st.integers(1, 3))
def test_rubbish_comparisons(tables: dict[str, Any], seeds: int) -> None:
    try:
        made = build_plans(tables, ["fedavg", "fedprox", "fedptr"], seeds)
    except UserError:
        return
    assert [len(each) for each in made.values()] == [seeds] * 3


assigned = st.text(max_size=20) | st.builds(
    lambda a, b, c: f"{a}.{b}={c}",
    sections,
    names,
    st.text(max_size=8) | scalars.map(str),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(assigned, max_size=3))
def test_rubbish_assignments(texts: list[str]) -> None:
    try:
        plan = plan_of(*(f"--set={text}" for text in texts))
    except UserError:
        return
    assert isinstance(plan, Plan)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_plan_files(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Bytes of a good plan are lost, doubled or changed."""
    good = Plan().toml().encode()
    start = data.draw(st.integers(0, len(good) - 1))
    stop = data.draw(st.integers(start, min(len(good), start + 30)))
    path = tmp_path_factory.getbasetemp() / "damaged.toml"
    path.write_bytes(
        good[:start] + data.draw(st.binary(max_size=6)) + good[start:stop] * data.draw(st.integers(0, 2)) + good[stop:]
    )
    try:
        tables = read_plan(path)
    except UserError:
        return
    plan_or_refusal(tables)


def test_dates_and_times_are_refused() -> None:
    for value in (date(2020, 1, 1), time(1), datetime(2020, 1, 1)):
        with pytest.raises(UserError, match=r"run\.seed must be a whole number"):
            check_plan({"run": {"seed": value}})
