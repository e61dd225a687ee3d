"""Recipes that differ in their number of rounds alone share a run: it is continued, or read as far as asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from same_bits import outcome
from smoke_recipe import smoke

from fedptr import atomic_files
from fedptr.errors import UserError
from fedptr.jobs.run_queue import find_finished_runs
from fedptr.reproduce import recipe as recipes
from fedptr.reproduce.outcome import collect_results
from fedptr.reproduce.recipe import choose_folder, fingerprint, lineage, load_recipe, longest_plans, make_cells
from fedptr.runs import extend, runner
from fedptr.runs.plan import load_plan
from fedptr.runs.plan import with_rounds as plan_with_rounds

NAME = "table7"
Capture = pytest.CaptureFixture[str]
Made = Callable[..., dict[str, Any]]


@pytest.fixture
def make() -> Made:
    """Runs a part of a recipe, two methods on digits, with another number of rounds; gives its reproduce.json."""

    def reproduce(out: Path, rounds: int, *more: str, code: int = 0) -> dict[str, Any]:
        assert smoke(NAME, out, "--seeds", "1", "--only", "once", "--rounds", str(rounds), *more) == code
        return dict(json.loads((out / NAME / "reproduce.json").read_text()))

    return reproduce


def with_rounds(recipe: recipes.Recipe, rounds: int) -> recipes.Recipe:
    return replace(recipe, scales={"smoke": {"run.rounds": rounds}})


def folders(out: Path) -> dict[str, Path]:
    return {path.parents[1].name: path.parent for path in sorted(out.glob("runs/*/seed0/summary.json"))}


def numbers(found: dict[str, Any]) -> list[Any]:
    """What a table is made of, without how long it took."""
    return [[cell[name] for name in ("row", "column", "accuracies", "mean", "gap", "megabytes", "verdict", "folders")]
            for cell in found["cells"]]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_recipe_with_more_rounds_continues_what_is_there(jobs: str, make: Made, tmp_path: Path) -> None:
    make(tmp_path / "part", 3)
    first = {name: (folder / "rounds.jsonl").read_bytes() for name, folder in folders(tmp_path / "part").items()}
    found, expected = make(tmp_path / "part", 6, "--jobs", jobs), make(tmp_path / "whole", 6)
    assert folders(tmp_path / "part").keys() == folders(tmp_path / "whole").keys() == first.keys()
    for name, folder in folders(tmp_path / "part").items():
        assert outcome(folder) == outcome(folders(tmp_path / "whole")[name])
        assert (folder / "rounds.jsonl").read_bytes().startswith(first[name]), "it was started over"
        assert len(list((folder / "checkpoint").glob("server-*"))) == 1
    assert numbers(found) == numbers(expected)
    weights = [[cell["weights_sha256"] for cell in each["cells"]] for each in (found, expected)]
    assert weights[0] == weights[1] != []


@pytest.mark.slow
def test_runs_of_another_machine_are_continued_when_that_is_accepted(
    make: Made, tmp_path: Path, capsys: Capture
) -> None:
    make(tmp_path / "out", 2)
    for path in tmp_path.glob("out/runs/*/seed0/checkpoint/server-*"):
        tensors, header = atomic_files.read_tensors(path)
        told = {**json.loads(header["computed"]), "processor": "Z80"}
        atomic_files.write_tensors(path, tensors, {**header, "computed": json.dumps(told)})
    capsys.readouterr()
    make(tmp_path / "out", 3, code=1)
    said = capsys.readouterr().err
    assert "processor was Z80 and is" in said
    assert "the same command with --recompute accepts another way of computing for all these runs" in said
    assert "Traceback" not in said
    make(tmp_path / "out", 3, "--recompute")
    for folder in folders(tmp_path / "out").values():
        (change,) = json.loads((folder / "summary.json").read_text())["recomputed"]
        assert (change["round"], change["from"]) == (2, {"processor": "Z80"})


def test_a_recipe_with_fewer_rounds_reads_the_beginning(make: Made, tmp_path: Path) -> None:
    """Six rounds and four of them: the last five are others, and so are the costs."""
    make(tmp_path / "longer", 6)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("longer/runs/*/*/*")}
    found, expected = make(tmp_path / "longer", 4), make(tmp_path / "alone", 4)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("longer/runs/*/*/*")} == stamps, "something was run"
    assert numbers(found) == numbers(expected)
    for cell in found["cells"]:
        lines = (tmp_path / "longer" / cell["folders"][0] / "rounds.jsonl").read_text().splitlines()
        seconds = [json.loads(line)["seconds"]["total"] for line in lines]
        assert cell["seconds"] == pytest.approx(sum(seconds[:4]))
        assert cell["weights_sha256"] == {}, "the weights of round 4 are gone"
    recipe = with_rounds(load_recipe(NAME).select(["once"]), 4)
    wanted = list(make_cells(recipe, "smoke", 1, tmp_path / "longer"))
    for result in collect_results(
        recipe, "smoke", 1, wanted, find_finished_runs(longest_plans(wanted)).runs, {}
    ).results.values():
        ((summary, records),) = result.runs.values()
        assert (summary["rounds"], len(records)) == (4, 4), "curves end there too"


@pytest.mark.slow
def test_of_cells_that_share_a_run_the_longest_is_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: Made
) -> None:
    recipe = load_recipe(NAME).select(["once"])
    columns = [recipes.Column(f"{n} rounds", {**recipe.columns[0].set, "run.rounds": n}) for n in (2, 5, 3)]
    rows = [replace(row, paper=(None,) * 3) for row in recipe.rows]
    several = replace(recipe, columns=tuple(columns), rows=tuple(rows), reference="2 rounds")
    with monkeypatch.context() as patched:
        patched.setattr("fedptr.reproduce.recipe.load_recipe", lambda name: several)
        assert smoke(NAME, tmp_path / "all", "--seeds", "1") == 0
    assert [load_plan(folder).run.rounds for folder in folders(tmp_path / "all").values()] == [5]
    found = json.loads((tmp_path / "all" / NAME / "reproduce.json").read_text())["cells"]
    for cell, rounds in zip(found, (2, 5, 3), strict=True):
        (alone, *_) = make(tmp_path / str(rounds), rounds)["cells"]
        assert cell["accuracies"] == alone["accuracies"]
        assert cell["weights_sha256"] in ({}, alone["weights_sha256"])


@pytest.mark.slow
def test_what_is_too_short_and_has_no_checkpoint_is_put_aside(make: Made, tmp_path: Path, capsys: Capture) -> None:
    before = make(tmp_path / "part", 3)
    held = {}
    for folder in folders(tmp_path / "part").values():
        shutil.rmtree(folder / "checkpoint")
        held[folder] = (folder / "rounds.jsonl").read_bytes()
        (folder.parent / "seed0.shorter").mkdir()  # of an earlier time
    assert numbers(make(tmp_path / "part", 3)) == numbers(before), "as long as it is not too short it is used"
    capsys.readouterr()
    make(tmp_path / "part", 5)
    said = capsys.readouterr().err
    assert said.count("has 3 rounds and no checkpoint, so its 5 are run from the start") == 2
    assert said.count("what it held is in seed0.shorter2") == 2
    for folder, lines in held.items():
        assert (folder.parent / "seed0.shorter2" / "rounds.jsonl").read_bytes() == lines
        assert load_plan(folder).run.rounds == 5


@pytest.mark.slow
def test_a_shorter_table_can_be_read_while_its_runs_get_longer(
    make: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make(tmp_path / "part", 3)
    for folder in folders(tmp_path / "part").values():
        stop_after(folder, 4, of=6)
        with pytest.raises(UserError):
            extend.check_extension(folder, load_plan(folder), 3)
    after = make(tmp_path / "part", 3, "--no-runs")
    assert [cell["weights_sha256"] for cell in after["cells"]] == [cell["weights_sha256"] for cell in before["cells"]]
    assert numbers(after) == numbers(before)
    found, expected = make(tmp_path / "part", 6), make(tmp_path / "whole", 6)
    assert numbers(found) == numbers(expected)


def stop_after(folder: Path, rounds: int, of: int) -> None:
    """Continues a run, and stops on the way."""

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == rounds:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.resume_run(load_plan(folder), folder, stop, rounds=of)


@pytest.mark.slow
def test_what_was_begun_for_more_rounds_is_brought_to_its_end(make: Made, tmp_path: Path) -> None:
    expected = make(tmp_path / "part", 3)
    for folder in folders(tmp_path / "part").values():
        stop_after(folder, 4, of=6)
        (folder / "summary.json").unlink()  # as if nothing had ever been finished
    assert all("mean" not in cell for cell in make(tmp_path / "part", 3, "--no-runs")["cells"])
    found = make(tmp_path / "part", 3)
    assert {load_plan(folder).run.rounds for folder in folders(tmp_path / "part").values()} == {6}
    assert numbers(found) == numbers(expected)


@pytest.mark.slow
def test_runs_of_earlier_versions_are_found(make: Made, tmp_path: Path) -> None:
    """Their folders' names tell the number of rounds, and they have no checkpoints."""
    before = make(tmp_path, 3)
    for name, folder in folders(tmp_path).items():
        plan = load_plan(folder)
        shutil.rmtree(folder / "checkpoint")
        told = name.replace(lineage(plan), fingerprint(plan))
        assert told != name
        folder.parent.rename(folder.parents[1] / told)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/*")}
    again = make(tmp_path, 3)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/*")} == stamps
    assert [cell["accuracies"] for cell in again["cells"]] == [cell["accuracies"] for cell in before["cells"]]
    make(tmp_path, 4)
    assert len(list(tmp_path.glob("runs/*/seed0/summary.json"))) == 4, "longer ones are runs of their own"


def test_who_shares_a_folder(tmp_path: Path) -> None:
    recipe = load_recipe(NAME)
    plan = recipe.make_plan(recipe.rows[0], recipe.columns[0], "smoke", 0)
    more = plan_with_rounds(plan, 50)  # also the default
    assert choose_folder(plan, tmp_path, exact=False) == choose_folder(more, tmp_path, exact=False)
    rarely = replace(plan, run=replace(plan.run, eval_every=3, rounds=7))
    assert lineage(rarely) != lineage(plan_with_rounds(rarely, 8)) == fingerprint(plan_with_rounds(rarely, 8))
    assert lineage(plan_with_rounds(rarely, 6)) == lineage(plan_with_rounds(rarely, 9))
    own = {choose_folder(p, tmp_path, exact=True) for p in (plan, more)}  # the models of both are wanted
    assert len(own) == 2
    shared = choose_folder(plan, tmp_path, exact=False)
    assert shared not in own
    shared.mkdir(parents=True)
    (shared / "plan.toml").write_text(plan.toml())
    assert choose_folder(plan, tmp_path, exact=True) == shared, "as long as nobody makes it longer"
    (shared / "plan.toml").write_text(more.toml())
    assert choose_folder(plan, tmp_path, exact=True) != shared
