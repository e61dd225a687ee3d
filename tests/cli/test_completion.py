"""Completion in the shell: the protocol of argcomplete, in a process of its own, as the shell speaks it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from wait_until import PATIENCE

from fedptr.data.sources import SOURCES
from fedptr.methods import all_methods

pytest.importorskip("argcomplete", reason="fedptr[completion] is not installed")
SEPARATOR = "\013"
# Runs the command line, and says at its end what was imported: argcomplete leaves by os._exit.
SCRIPT = """
import os, sys
leave = os._exit
def look(code):
    heavy = {"torch", "rich", "sklearn", "matplotlib"} & set(sys.modules)
    leave(99 if heavy else code)
os._exit = look
from fedptr.cli.main import main
sys.exit(main([]))
"""


def complete(line: str, tmp_path: Path) -> list[str]:
    """What the shell is offered for a line that ends where the cursor is."""
    (tmp_path / "photos").mkdir(exist_ok=True)
    answers = tmp_path / "answers"
    asked = {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": SEPARATOR, "_ARGCOMPLETE_STDOUT_FILENAME": str(answers),
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1", "_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n",
        "COMP_LINE": line, "COMP_POINT": str(len(line.encode())), "COMP_TYPE": "9",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, **asked}, cwd=tmp_path, capture_output=True, text=True,
        timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, f"99 is a heavy import: {done.returncode} {done.stderr}"
    return answers.read_text().split(SEPARATOR)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("fedptr com", ["compare"]),
        ("fedptr deploy ini", ["init"]),
        ("fedptr run --par", ["--partition", "--participation"]),
        ("fedptr run --method fedpt", ["fedptr", "fedptr-linear", "fedptr-s"]),
        ("fedptr run --rounds 3 --method scaffold+", ["scaffold+ptr"]),
        ("fedptr compare --methods fedavg,scaf", ["fedavg,scaffold"]),
        ("fedptr sw", ["sweep"]),
        ("fedptr sweep --methods fedavg,scaf", ["fedavg,scaffold"]),
        ("fedptr sweep --dra", ["--draw-seed"]),
        ("fedptr run --dataset ci", ["cifar10", "cifar100"]),
        ("fedptr run --dataset ph", ["photos/"]),
        ("fedptr run --data-dir ph", ["photos/"]),
        ("fedptr run --partition sh", ["shards"]),
        ("fedptr run --set local.mo", ["local.momentum="]),
        ("fedptr run --set run.sampling=", ["run.sampling=fixed", "run.sampling=bernoulli"]),
        ("fedptr run --set method.name=fedprox", ["method.name=fedprox"]),
        ("fedptr methods scaf", ["scaffold"]),
        ("fedptr settings faults.d", ["faults.drop"]),
        ("fedptr reproduce table1", ["table1", "table10", "table11", "table12"]),
        ("fedptr status ph", ["photos/"]),
    ],
)
def test_it_is_offered_quickly(line: str, offered: list[str], tmp_path: Path) -> None:
    assert sorted(complete(line, tmp_path)) == sorted(offered)


def test_all_methods_and_datasets_are_offered(tmp_path: Path) -> None:
    assert set(all_methods()) <= set(complete("fedptr run --method ", tmp_path))
    assert set(SOURCES) <= set(complete("fedptr data get ", tmp_path))


def test_without_argcomplete_the_command_line_works(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedptr.cli.main import main

    monkeypatch.setenv("_ARGCOMPLETE", "1")
    monkeypatch.setitem(sys.modules, "argcomplete", None)  # as if it were not installed
    assert main(["data", "check", "digits"]) == 0
