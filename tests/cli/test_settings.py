"""`fedptr settings` lists every setting there is, and `--help` shows the defaults of the dataclasses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import unicodedata
from dataclasses import fields
from typing import Any

import pytest
from wait_until import PATIENCE

from fedptr.cli.main import COMMANDS, build_parser, main
from fedptr.cli.options import DATA_OPTIONS, ENGINE_OPTIONS, METHOD_OPTION, RUN_OPTIONS, parse_assignment
from fedptr.cli.read_source import read_method_names, read_settings
from fedptr.methods import all_methods, built_in_methods, find_method
from fedptr.runs.describe_settings import MEANINGS, format_toml, list_settings, select_settings
from fedptr.runs.laptop_settings import words_by_dataset
from fedptr.runs.plan import SECTIONS, assign_settings
from fedptr.settings import build_settings, choices_of

Capture = pytest.CaptureFixture[str]


def listing(capsys: Capture, monkeypatch: pytest.MonkeyPatch, *argv: str) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["settings", *argv]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert not re.search(r"\w…", out), "something is cut off"
    assert max(sum(not unicodedata.combining(c) for c in line) for line in out.splitlines()) <= 80
    return out


def section_class(section: str, method: str) -> Any:
    return find_method(method) if section == "method" else SECTIONS[section].default_factory


# The list


def test_every_key_of_every_section_is_listed(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    out = listing(capsys, monkeypatch)
    text = " ".join(out.split())
    for section in SECTIONS:
        assert f"[{section}] {MEANINGS[section]}" in text
        for spec in fields(section_class(section, "fedptr")):
            row = [spec.name, format_toml(spec.default), spec.metadata["doc"].split()[0]]
            assert any(line.split()[:3] == row for line in out.splitlines()), row
            assert f"--set {section}.{spec.name}=" in text
    assert "`fedptr methods fedptr` explains the method" in text


def test_it_narrows_to_a_section_a_key_and_a_method(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    local = listing(capsys, monkeypatch, "local")
    assert "momentum" in local
    assert "participation" not in local
    rounds = listing(capsys, monkeypatch, "run.rounds")
    assert "a whole number at least 1" in rounds
    assert "--set run.rounds=100" in rounds
    assert "participation" not in rounds
    scaffold = listing(capsys, monkeypatch, "method", "--method", "scaffold")
    assert "momentum_correction" in scaffold
    assert "lr_img" not in scaffold
    assert "fedptr methods scaffold" in " ".join(scaffold.split())


@pytest.mark.parametrize("method", all_methods())
def test_every_example_is_valid_and_most_differ_from_the_default(method: str) -> None:
    for section in SECTIONS:
        for info in list_settings(section, method):
            if info.key == "name" and section == "method":
                continue
            tables = assign_settings({}, [parse_assignment(info.assignment)])
            built = build_settings(section_class(section, method), tables[section], section)
            assert getattr(built, info.key) == info.example
            assert info.example != info.default or len(info.choices) == 1, f"{info.place} has no example"
            assert not (isinstance(info.default, float) and isinstance(info.example, int)), info.place


def test_programs_read_json(capsys: Capture) -> None:
    assert main(["settings", "split", "--json"]) == 0
    found = {info["key"]: info for info in json.loads(capsys.readouterr().out)}
    assert set(found) == {spec.name for spec in fields(section_class("split", ""))}
    assert found["clients"]["default"] == 10
    assert found["kind"]["choices"][:2] == ["dirichlet", "dirichlet-by-client"]
    assert found["file"]["choices"] == []


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["locl"], "locl is not a section of a plan; did you mean local?"),
        (["local.lrr"], "local.lrr is not a setting; did you mean local.lr?"),
        (["rounds"], "rounds is not a section of a plan; did you mean run.rounds?"),
        (["runs.rounds"], "runs.rounds is not a section of a plan; did you mean run.rounds?"),
        (["method.lma"], "method.lma is not a setting of fedptr; did you mean method.lam?"),
        (["method.lam", "--method", "fedavg"], "method.lam is not a setting of fedavg"),
        (["--method", "fedpr"], "fedpr is not a method; did you mean fedptr?"),
        ([""], "an empty name is not a section of a plan"),
        (["local."], "local. is not a setting; choose from: lr"),
    ],
)
def test_a_mistyped_name_gets_a_suggestion(argv: list[str], words: str, capsys: Capture) -> None:
    assert main(["settings", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"fedptr: {words}")
    assert err.count("\n") == 1


def test_values_are_toml() -> None:
    for info in select_settings(None):
        for value in (info.default, info.example):
            assert tomllib.loads(f"value = {format_toml(value)}")["value"] == value


# Help


def test_the_source_says_what_the_dataclasses_say() -> None:
    """`--help` and completion read the source; an import would need torch."""
    from typing import get_type_hints

    found = read_settings()
    expected = {"method.name": ("fedptr", ())}
    for section in SECTIONS:
        if section != "method":
            cls = section_class(section, "")
            for spec in fields(cls):
                hint = get_type_hints(cls)[spec.name]
                choices = ("true", "false") if hint is bool else tuple(choices_of(hint))
                expected[f"{section}.{spec.name}"] = (spec.default, choices)
    assert found == expected
    assert sorted(read_method_names()) == sorted(method.name for method in built_in_methods())


def test_help_shows_the_default_of_every_option_that_has_one(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        build_parser().parse_args(["run", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for option, (place, metavar, _) in (METHOD_OPTION | DATA_OPTIONS | RUN_OPTIONS | ENGINE_OPTIONS).items():
        default = read_settings()[place].default
        words = re.search(rf" {option} {re.escape(metavar)} (?!\[)(?:(?! --).)*", text)
        assert words, option
        shown = default if isinstance(default, str) else json.dumps(default)
        shown = f"by dataset: {by_dataset}" if (by_dataset := words_by_dataset(place)) else shown
        assert ("(default" in words[0]) == bool(shown), option
        assert not shown or f"(default {shown})" in words[0]
    assert "(default [])" not in text
    assert "(default False)" not in text


def test_no_help_names_a_default_twice_or_imports_torch() -> None:
    names = [command.__name__.rpartition(".")[2] for command in COMMANDS]
    script = f"""
import sys
from fedptr.cli.main import main
for name in {names}:
    try:
        main([name, "--help"])
    except SystemExit as end:
        assert not end.code
assert not {{"torch", "numpy", "rich"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert not re.search(r"\(default[^)]*\)\s+\(default", done.stdout)


def test_resume_does_not_promise_a_default_engine(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["resume", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "(default local)" not in text
    assert "default: as in its plan" in text
