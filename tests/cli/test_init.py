"""`fedptr init` writes a plan that runs, shows what may be changed, and replaces nothing by accident."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from wait_until import PATIENCE

from fedptr.cli.main import main
from fedptr.methods import all_methods
from fedptr.runs.dataset_defaults import with_dataset_defaults
from fedptr.runs.plan import check_plan, parse_toml, read_plan
from fedptr.runs.write_plan import RARE, write_commented_plan

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def uncommented(text: str) -> str:
    """The plan with every setting named."""
    return re.sub(r"^#(?=\w+ = )", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("method", [*all_methods(), "scaffold+ptr"])
def test_a_plan_is_the_same_with_and_without_the_lines_that_are_commented_out(method: str) -> None:
    tables = {"run": {"rounds": 7, "participation": 1.0}, "method": {"name": method}, "split": {"test": "shares"}}
    text = write_commented_plan(tables)
    plan = check_plan(tables)
    assert check_plan(parse_toml(text)) == plan
    assert check_plan(parse_toml(uncommented(text))) == plan
    named = {section: table for section, table in parse_toml(text).items() if table}
    default = {} if method == "fedptr" else {"method": {"name": method}}
    rounds = {} if plan.method.one_shot else {"run": {"rounds": 7}}  # such a plan has one, whatever it says
    assert named == {**rounds, **default, "split": {"test": "shares"}}, "and no more than that"
    everything = {section: set(table) for section, table in plan.tables().items() if section not in RARE}
    assert {section: set(table) for section, table in parse_toml(uncommented(text)).items()} == everything
    assert max(map(len, text.splitlines())) <= 120


def test_sections_that_few_need_are_there_when_they_are_used() -> None:
    text = write_commented_plan({"faults": {"drop": 0.1}, "methods": {"fedprox": {"mu": 1.0}}})
    assert parse_toml(text)["faults"] == {"drop": 0.1}
    assert parse_toml(text)["methods"] == {"fedprox": {"mu": 1.0}}
    assert "# Left out here: [privacy]." in text


def test_an_own_method_is_named_by_its_address(tmp_path: Path) -> None:
    (tmp_path / "own_init_method.py").write_text(
        "from dataclasses import dataclass\nfrom fedptr.methods.fedavg import FedAvg\n\n"
        "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    name = 'mine'\n"
    )
    assert main(["init", "--yes", "--method", "own_init_method:Mine"]) == 0
    assert read_plan("plan.toml")["method"]["name"] == "own_init_method:Mine"


def test_what_it_writes_runs(tmp_path: Path, capsys: Capture) -> None:
    small = ["--set", "model.name=mlp", "--set", "model.width=8", "--set", "machine.threads=1", "--rounds", "2"]
    assert main(["init", "mine.toml", "--yes", "--method", "fedavg", "--clients", "4", *small]) == 0
    assert capsys.readouterr().out == "plan: mine.toml\nstart it: fedptr run mine.toml\n"
    assert main(["run", "mine.toml", "--out", "out"]) == 0
    assert read_plan(tmp_path / "out/plan.toml")["split"]["clients"] == 4


def test_without_a_terminal_nothing_is_asked(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedptr", "init"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert check_plan(read_plan(tmp_path / "plan.toml")) == check_plan(with_dataset_defaults({})[0])


def refused(capsys: Capture, *argv: str) -> str:
    assert main(["init", "--yes", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_a_file_is_replaced_only_when_asked(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "plan.toml").write_text("mine")
    assert "plan.toml exists; choose another name, or add --force" in refused(capsys)
    assert (tmp_path / "plan.toml").read_text() == "mine"
    assert main(["init", "--yes", "--force"]) == 0
    assert check_plan(read_plan("plan.toml")) == check_plan(with_dataset_defaults({})[0])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["."], ". is a folder; name a file to write"),
        (["none/plan.toml"], "there is no folder none; create it first"),
        (
            ["--dataset", "digit"],
            "digit is not a known dataset, and no such file or folder exists; did you mean digits?",
        ),
        (["--method", "fedpr"], "did you mean fedptr?"),
        (["--clients", "0"], "split.clients must be at least 1, not 0"),
        (["--set", "local.lrr=1"], "local.lrr is not a setting; did you mean local.lr?"),
    ],
)
def test_mistakes_write_nothing(argv: list[str], words: str, tmp_path: Path, capsys: Capture) -> None:
    assert words in refused(capsys, *argv)
    assert not list(tmp_path.iterdir())


# Questions


def answer(say: Callable[[str], str | None], *argv: str) -> tuple[int, str]:
    """Runs it in a terminal and answers each question; `say` gets the name asked for, None is Ctrl-D."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fedptr", "init", *argv], stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown, seen = "", 0
    while True:
        try:
            part = os.read(ours, 4096).decode()
        except OSError:  # how Linux says that the other side has closed
            break
        if not part:
            break
        shown += part
        questions = re.findall(r"^(\w+) \(.*\) \[.*\]: ", shown, re.MULTILINE)
        for name in questions[seen:]:
            text = say(name)
            os.write(ours, b"\x04" if text is None else f"{text}\n".encode())
        seen = len(questions)
    os.close(ours)
    return process.wait(timeout=PATIENCE), shown


def test_in_a_terminal_it_asks_and_enter_takes_the_default(tmp_path: Path) -> None:
    replies = {
        "dataset": ["digts", "digits"],
        "method": ["fedavg"],
        "clients": [""],
        "alpha": ["x", "0.5"],
        "rounds": ["3"],
    }
    code, shown = answer(lambda name: replies[name].pop(0))
    assert code == 0, shown
    assert not any(replies.values()), "every answer was asked for"
    assert "digts is not a known dataset, and no such file or folder exists; did you mean" in shown
    assert "split.alpha must be a number, not 'x'" in shown
    asked = " ".join(shown.split())  # a long question takes two lines
    assert "clients (number of clients; 0 = one for every user) [10]:" in asked
    named = {section: table for section, table in read_plan(tmp_path / "plan.toml").items() if table}
    assert (named["run"], named["split"]) == ({"rounds": 3}, {"alpha": 0.5, "min_size": 20})
    assert named["method"] == {"name": "fedavg"}


@pytest.mark.slow
def test_what_options_say_is_not_asked_and_yes_asks_nothing(tmp_path: Path) -> None:
    asked = []
    code, _ = answer(lambda name: asked.append(name) or "", "--method", "fedavg", "--rounds", "3")  # type: ignore[func-returns-value]
    assert (code, asked) == (0, ["dataset", "clients", "alpha"])
    code, _ = answer(lambda name: pytest.fail("it asked"), "other.toml", "--yes")
    assert code == 0
    assert (tmp_path / "other.toml").exists()


def test_an_end_of_input_writes_nothing(tmp_path: Path) -> None:
    code, shown = answer(lambda name: None)
    assert code == 130
    assert "stopped; no plan was written" in shown
    assert not list(tmp_path.iterdir())
