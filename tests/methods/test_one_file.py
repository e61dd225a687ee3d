"""Adding a method is adding one file: dropped into a copy of the package, it works everywhere with no other edit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from wait_until import PATIENCE

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TOY = '''"""FedNova-like: every client counts by its step, not by how many steps it made.

    τ_i     local steps of client i          d_i    (x − w_i)/τ_i, its mean step

A round:  x ← x − mean(τ) · mean(d_i).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedptr.core.method import Oracle, Rule, Site
from fedptr.methods.fedavg import FedAvg
from fedptr.plots import Look
from fedptr.settings import setting
from fedptr.types import Reply, State


@dataclass(frozen=True)
class FedToy(FedAvg):
    server_lr: float = setting(1.0, "step size of the toy's server", gt=0)

    name: ClassVar[str] = "fedtoy"
    idea: ClassVar[str] = "counts every client's mean step alike, however many it made"
    cite: ClassVar[str] = "Toy et al., 2026"
    family: ClassVar[str] = "normalised averaging"
    rule: ClassVar[Rule] = Rule(server="x ← x − mean(τ)·mean of d_i")
    look: ClassVar[Look] = Look("#123456")
    oracle: ClassVar[tuple[Oracle, ...]] = (Oracle("FedToy", "off", "toys do not correct drift"),)
    aliases: ClassVar[tuple[str, ...]] = ("fednova-toy",)

    def aggregate(self, server: State, replies: Sequence[Reply], site: Site) -> State:
        steps = sum(reply.steps for reply in replies) / len(replies)
        normalised = [r._replace(state={"w": (r.state["w"] - server["x"]) / r.steps}) for r in replies]
        return {"x": server["x"] + self.server_lr * steps * self.mean(normalised)}
'''
SMALL = ["--dataset", "digits", "--model", "mlp", "--width", "8", "--rounds", "2", "--set", "machine.threads=1"]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, the tests and the docs, with one file more."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("fedptr", "tests", "docs", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "fedptr" / "methods" / "fedtoy.py").write_text(TOY, encoding="utf-8")
    return folder


def python(folder: Path, *argv: str, code: int = 0) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'docs'}", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, *argv], cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def fedptr(folder: Path, *argv: str, code: int = 0) -> str:
    return python(folder, "-m", "fedptr", *argv, code=code)


def test_the_command_line_knows_it(copy: Path) -> None:
    listed = fedptr(copy, "methods")
    assert "fedtoy" in listed
    assert "Toy et al., 2026" in listed
    assert "step size of the toy's server" in fedptr(copy, "methods", "fedtoy")
    assert "fednova-toy is called fedtoy here" in fedptr(copy, "run", "--method", "fednova-toy", code=2)
    assert "method.server_lr must be more than 0" in fedptr(
        copy, "run", "--method", "fedtoy", "--set", "method.server_lr=0", code=2
    )


def test_it_runs_resumes_compares_with_its_colour_and_is_reported(copy: Path) -> None:
    fedptr(copy, "run", "--method", "fedtoy", *SMALL, "--out", "run")
    assert 'name = "fedtoy"' in (copy / "run" / "plan.toml").read_text(encoding="utf-8")
    fedptr(copy, "resume", "run", "--rounds", "3")
    fedptr(copy, "run", "--method", "fedtoy", "--with", "ptr", *SMALL, "--set", "method.H=1", "--out", "both")
    fedptr(copy, "compare", "--methods", "fedavg,fedtoy", *SMALL, "--out", "compared")
    assert "#123456" in (copy / "compared" / "curves.svg").read_text(encoding="utf-8")
    fedptr(copy, "report", "compared", "-o", "page.html")
    assert "#123456" in (copy / "page.html").read_text(encoding="utf-8")


def test_the_docs_have_its_row_and_its_page(copy: Path) -> None:
    pytest.importorskip("mkdocs", reason="fedptr[docs] is not installed")
    page = "hooks.method_page(hooks.all_methods()['fedtoy'])"
    script = f"import hooks; print(*(make() for make in hooks.MARKERS.values()), {page})"
    made = python(copy, "-c", script)
    assert "| **normalised averaging** |" in made
    assert "| [fedtoy](methods/fedtoy.md) (fednova-toy) | ∇L_i(w) | x ← x − mean(τ)·mean of d_i | 1 / 1 |" in made
    assert "- FedToy: toys do not correct drift." in made
    assert "def aggregate" in made


def test_its_laws_and_its_theory_are_tested(copy: Path) -> None:
    """By the tests as they are: whatever runs over all methods runs over it."""
    options = ["-q", "-p", "no:cacheprovider", "-n0", "-k", "fedtoy or FedToy"]
    files = ["methods/test_laws.py", "methods/test_combine.py", "theory/test_oracle.py"]
    said = python(copy, "-m", "pytest", *options, *(f"tests/{name}" for name in files))
    passed = int(said.split(" passed")[0].split()[-1])
    assert passed >= 14


def test_its_stub_is_written_by_a_command(copy: Path) -> None:
    python(copy, "tests/helpers/methods_stub.py")
    assert "import FedToy as FedToy\n" in (copy / "fedptr" / "methods" / "_classes.pyi").read_text(encoding="utf-8")
