"""A method in somebody's own package: as `module:Class`, and by an entry point."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from wait_until import PATIENCE

from fedptr.cli.main import main
from fedptr.methods import all_methods, find_method, make_method, method_address
from fedptr.report.group_runs import method_settings
from fedptr.runs.plan import check_plan
from fedptr.runs.same_run import changed_settings, fingerprint, identity, identity_text, lineage, shared_by_seeds

OWN = """
from dataclasses import dataclass
from typing import ClassVar
from fedptr.core.method import Method
from fedptr.settings import setting

@dataclass(frozen=True)
class Mine(Method):
    mu: float = setting(0.1, "how hard to pull", ge=0)
    name: ClassVar[str] = "mine"
    idea: ClassVar[str] = "pulls towards the global model"
    cite: ClassVar[str] = "me"

    def pull(self, w, msg, client, site):
        return self.mu * (w - msg["x"])

@dataclass(frozen=True)
class Taken(Mine):
    name: ClassVar[str] = "fedavg"

@dataclass(frozen=True)
class Silent(Method):
    name: ClassVar[str] = "silent"

@dataclass(frozen=True)
class Slash(Mine):
    name: ClassVar[str] = "a/b"

class Other:
    pass

text = "no class"
"""
SMALL = ["--dataset", "digits", "--model", "mlp", "--width", "8", "--rounds", "2", "--set", "machine.threads=1"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module, as the current one; the module is not on Python's path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_methods.py").write_text(OWN, encoding="utf-8")
    (tmp_path / "broken_methods.py").write_text("1 / 0", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "own_methods", raising=False)
    find_method.cache_clear()
    return tmp_path


def test_it_runs_and_resumes_from_its_folder(here: Path) -> None:
    assert main(["run", "--method", "own_methods:Mine", *SMALL, "--set", "method.mu=0.5", "--out", "run"]) == 0
    assert 'name = "own_methods:Mine"' in (here / "run" / "plan.toml").read_text(encoding="utf-8")
    assert main(["resume", "run", "--rounds", "3"]) == 0
    assert main(["run", "run/plan.toml", "--out", "again"]) == 0
    assert len((here / "again" / "rounds.jsonl").read_text(encoding="utf-8").splitlines()) == 3


def test_it_is_the_same_as_the_same_rule_of_ours(here: Path) -> None:
    for method, out in (("own_methods:Mine", "own"), ("fedprox", "ours")):
        assert main(["run", "--method", method, *SMALL, "--set", "method.mu=0.1", "--out", out]) == 0
    own, ours = ((here / out / "weights.safetensors").read_bytes() for out in ("own", "ours"))
    assert own == ours


def test_it_is_compared_by_its_name_and_the_comparison_resumes(here: Path) -> None:
    assert main(["compare", "--methods", "fedavg,own_methods:Mine", *SMALL, "--out", "compared"]) == 0
    assert (here / "compared" / "mine" / "seed0" / "summary.json").exists()
    assert main(["resume", "compared", "--rounds", "3"]) == 0
    assert main(["report", "compared", "-o", "page.html"]) == 0


def test_it_combines_with_ptr_and_travels(here: Path) -> None:
    method = make_method("own_methods:Mine+ptr", mu=0.3)
    assert (method.name, method_address(type(method))) == ("mine+ptr", "own_methods:Mine+ptr")
    assert pickle.loads(pickle.dumps(method)) == method  # noqa: S301, our own bytes
    plan = check_plan({"method": {"name": "own_methods:Mine+ptr", "mu": 0.3}})
    assert check_plan(plan.tables()) == plan


def test_two_of_one_name_are_not_the_same_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "other_methods.py").write_text(OWN, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "other_methods", raising=False)
    one, other = (check_plan({"method": {"name": f"{module}:Mine"}}) for module in ("own_methods", "other_methods"))
    assert one.method.name == other.method.name
    for same in (identity, fingerprint, lineage, identity_text, shared_by_seeds, method_settings):
        assert same(one) != same(other)
        assert same(one) == same(check_plan(one.tables()))
    assert changed_settings(identity_text(one), other) == ("method.name was own_methods:Mine and is other_methods:Mine")
    for name in [*all_methods(), "scaffold+ptr"]:
        plan = check_plan({"method": {"name": name}, "run": {"participation": 1.0}})
        assert identity(plan)["method.name"] == name
        assert "name" not in method_settings(plan)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere_at_all:Mine", "cannot be imported (No module named 'nowhere_at_all'); give it as module:Class"),
        ("own_methods:Yours", "cannot be imported (module 'own_methods' has no attribute 'Yours')"),
        ("broken_methods:Mine", "cannot be imported (division by zero)"),
        ("own_methods:", "cannot be imported"),
        (":Mine", "cannot be imported"),
        ("own_methods:Other", "method own_methods:Other is no method; let it be a frozen dataclass"),
        ("own_methods:text", "method own_methods:text is no method"),
        ("own_methods:Silent", "method own_methods:Silent does not declare idea"),
        ("own_methods:Slash", "has the name 'a/b'; use small letters"),
        ("own_methods:Taken", "has the name fedavg, which another method has; rename it"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    name: str, words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--method", name, *SMALL, "--out", "run"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (here / "run").exists()


@pytest.mark.slow
def test_an_entry_point_is_found_and_a_broken_one_is_left_out(here: Path) -> None:
    """As pip would leave it: a folder with metadata on Python's path."""
    info = here / "own-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    points = "good = own_methods:Mine\nbad = broken_methods:Mine\ntaken = own_methods:Taken\n"
    (info / "entry_points.txt").write_text(f"[fedptr.methods]\n{points}")
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{here}"}

    def fedptr(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fedptr", *argv]
        return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=PATIENCE)

    done = fedptr("methods")
    assert done.returncode == 0, done.stderr
    assert "mine" in done.stdout.split()
    assert "the plug-in bad (broken_methods:Mine) is left out: division by zero" in done.stderr
    assert (
        "the plug-in taken (own_methods:Taken) is left out: there is another method of the name fedavg" in done.stderr
    )
    assert done.stderr.count("\n") == 2
    done = fedptr("run", "--method", "mine", *SMALL, "--out", str(here / "run"))
    assert done.returncode == 0, done.stderr
    assert 'name = "mine"' in (here / "run" / "plan.toml").read_text(encoding="utf-8")


def test_our_own_are_addressed_by_name() -> None:
    assert all(method_address(method) == name for name, method in all_methods().items())
    assert method_address(find_method("scaffold+ptr")) == "scaffold+ptr"
