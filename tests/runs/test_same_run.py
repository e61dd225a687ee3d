"""One definition of the same run: what may change before a resume, and what keeps its name from version to version."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from every_setting import every_setting
from safetensors.torch import load_file

from fedptr import atomic_files
from fedptr.cli.main import main
from fedptr.compute.workload import MachinePlan
from fedptr.core.local_training import Local
from fedptr.methods import FedAvg, all_methods, find_method
from fedptr.privacy.differential import Privacy
from fedptr.runs import compare
from fedptr.runs.archive import read_members
from fedptr.runs.plan import OutputPlan, Plan, check_plan, load_plan, parse_toml, read_plan, with_baselines, with_rounds
from fedptr.runs.same_run import (
    all_settings,
    digest_before_0_2,
    fingerprint,
    identity,
    identity_text,
    lineage,
    shared_by_seeds,
)
from fedptr.runs.summary import read_finished
from fedptr.settings import baseline_of, effect_of

HERE = Path(__file__).parent
BEFORE = HERE / "before_0_2"  # two of three rounds by version 0.1 (commit a7e1dfb), as a kill in the third left them
RESULTS = HERE.parents[1] / "results"
SEEDS = ("run.seed", "split.seed", "data.seed")
COST = {"machine.device", "machine.threads", "machine.compile", "machine.clients_at_once"}
NOTHING = {
    "machine.engine", "machine.ray_address", "machine.workers", "machine.memory_check", "machine.client_memory",
    "output.pictures", "output.sets", "output.best", "run.checkpoint_every", "data.dir",
}  # fmt: skip
TINY = ["--preset", "paper", "--dataset", "digits", "--subset", "60", "--clients", "2", "--partition", "iid",
        "--model", "mlp", "--width", "2", "--batch", "16", "--threads", "1"]  # fmt: skip


def test_every_setting_affects_what_it_says() -> None:
    """Of all sections and all methods: another value is another run, or it is not."""
    for method, place, value in every_setting():
        section, _, key = place.partition(".")
        plan = Plan(method=find_method(method)())
        before = getattr(plan, section)
        if value == getattr(before, key):  # it has no other value
            continue
        changed: Any = {section: replace(before, **{key: value})}
        other = replace(plan, **changed)
        effect = "cost" if place in COST else "nothing" if place in NOTHING else "result"
        assert effect_of(spec_of(plan, place)) == effect, place
        assert (identity(other) != identity(plan)) == (effect == "result"), place
        assert (identity_text(other) != identity_text(plan)) == (effect != "nothing"), place
        assert (fingerprint(other) != fingerprint(plan)) == (effect == "result" and place != "run.seed"), place
        same_but_seeds = effect == "nothing" or place in SEEDS
        assert (shared_by_seeds(other) == shared_by_seeds(plan)) == same_but_seeds, place


def spec_of(plan: Plan, wanted: str) -> Any:
    return next(spec for place, _, spec in all_settings(plan) if place == wanted)


def test_an_identity_has_the_method_and_what_is_not_at_its_baseline() -> None:
    assert identity(Plan()) == {"method.name": "fedptr"}
    plan = Plan(privacy=Privacy(clip=1.0), method=FedAvg(), machine=MachinePlan(threads=1))
    assert identity(plan) == {"privacy.clip": 1.0, "method.name": "fedavg"}
    assert identity(plan, "cost") == {"machine.threads": 1}


def change_default(monkeypatch: pytest.MonkeyPatch, cls: type, name: str, new: Any) -> None:
    """As if a later version had `name = setting(new, …, baseline=old)`."""
    (spec,) = (f for f in fields(cls) if f.name == name)
    monkeypatch.setattr(cls.__init__, "__defaults__", tuple(new if f is spec else f.default for f in fields(cls)))
    monkeypatch.setattr(spec, "metadata", {**spec.metadata, "baseline": spec.default})
    monkeypatch.setattr(spec, "default", new)
    monkeypatch.setattr(cls, name, new)


def test_with_a_changed_default_old_runs_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Plan(method=FedAvg())
    before = identity_text(old), fingerprint(old), lineage(old)
    change_default(monkeypatch, Local, "lr", 0.02)
    new = Plan(method=FedAvg())
    assert new.local.lr == 0.02
    assert (identity_text(old), fingerprint(old), lineage(old)) == before
    assert identity(new) == {"local.lr": 0.02, "method.name": "fedavg"}, "and are not mixed with new ones"


def test_a_changed_default_does_not_stop_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    assert main(["run", *TINY, "--method", "fedavg", "--rounds", "2", "--out", str(out)]) == 0
    change_default(monkeypatch, Local, "lr", 0.02)
    assert main(["resume", str(out), "--rounds", "3"]) == 0
    assert load_plan(out).local.lr == 0.01
    # As if the run were older than the setting, whose default does not mean "as before".
    text = (out / "plan.toml").read_text()
    assert text.count("\nlr = 0.01\n") == 1
    (out / "plan.toml").write_text(text.replace("\nlr = 0.01\n", "\n"))
    assert main(["resume", str(out), "--rounds", "4"]) == 0
    assert load_plan(out).local.lr == 0.01
    (tmp_path / "mine.toml").write_text("[local]\nbatch = 16\n")
    assert check_plan(read_plan(tmp_path / "mine.toml")).local.lr == 0.02, "a plan of nothing that was run has today's"


def test_a_comparison_keeps_the_defaults_it_was_started_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["compare", *TINY, "--methods", "fedavg,fedprox", "--rounds", "1", "--out"]
    assert main([*argv, str(tmp_path / "old")]) == 0
    mu = find_method("fedprox")().mu  # type: ignore[attr-defined]
    change_default(monkeypatch, Local, "lr", 0.02)
    change_default(monkeypatch, find_method("fedprox"), "mu", 0.5)
    assert main([*argv, str(tmp_path / "new")]) == 0
    assert main(["resume", str(tmp_path / "old")]) == 0, "it is finished, and no error"
    for out, expected in (("old", (0.01, mu)), ("new", (0.02, 0.5))):
        assert main(["resume", str(tmp_path / out), "--rounds", "2"]) == 0
        for plan in (
            *compare.read_comparison(tmp_path / out)["fedprox"],
            load_plan(tmp_path / out / "fedprox" / "seed0"),
        ):
            assert (plan.local.lr, plan.method.mu) == expected  # type: ignore[attr-defined]
        assert read_finished(tmp_path / out / "fedprox" / "seed0")[0]["rounds"] == 2


def test_baselines_stay() -> None:
    """Whoever changes a default names the old one as its `baseline`. A setting that is not in the file is newer."""
    kept, found = json.loads((HERE / "baselines.json").read_text()), dict(baselines())
    assert {place: found[place] for place in kept if place in found} == kept


def baselines() -> Iterator[tuple[str, Any]]:
    """By section.key, and of the methods by method.NAME.key."""
    for name, method in all_methods().items():
        for place, _, spec in all_settings(Plan(method=method())):
            if baseline_of(spec) is not MISSING:
                yield place.replace("method.", f"method.{name}."), baseline_of(spec)


def test_what_affects_nothing_may_change_before_a_resume(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["run", *TINY, "--method", "fedavg", "--rounds", "2", "--out", str(out)]) == 0
    plan = load_plan(out)
    every, elsewhere = replace(plan.run, checkpoint_every=2), replace(plan.data, dir=str(tmp_path))
    machine = replace(plan.machine, memory_check=False, client_memory=1)
    changed = replace(plan, run=every, data=elsewhere, machine=machine, output=OutputPlan(pictures=3, sets=1))
    (out / "plan.toml").write_text(changed.toml())
    (out / "summary.json").unlink()
    assert main(["resume", str(out), "--rounds", "3"]) == 0
    assert load_plan(out) == with_rounds(changed, 3)


def test_a_checkpoint_of_version_0_1_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, header = atomic_files.read_tensors(BEFORE / "checkpoint" / "server-2.safetensors")
    assert header["plan"] == digest_before_0_2(BEFORE / "plan.toml")
    for rounds, folder in (("3", "same"), ("5", "longer")):
        shutil.copytree(BEFORE, tmp_path / folder)
        assert main(["resume", str(tmp_path / folder), "--rounds", rounds]) == 0
        assert "after round 2 of" in capsys.readouterr().err
        whole = tmp_path / f"{folder}-whole"
        assert main(["run", str(BEFORE / "plan.toml"), "--rounds", rounds, "--out", str(whole)]) == 0
        resumed, expected = (load_file(path / "weights.safetensors") for path in (tmp_path / folder, whole))
        for name, value in expected.items():
            torch.testing.assert_close(resumed[name], value)


@pytest.mark.parametrize(("old", "new"), [("lr = 0.01", "lr = 0.02"), ("threads = 1", "threads = 2")])
def test_a_checkpoint_of_version_0_1_is_not_resumed_by_another_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str
) -> None:
    shutil.copytree(BEFORE, tmp_path / "run")
    path = tmp_path / "run" / "plan.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert main(["resume", str(tmp_path / "run")]) == 2
    assert "changed since the run was started" in capsys.readouterr().err


def test_runs_that_are_there_keep_their_folders() -> None:
    """The hash in a folder's name is the lineage of the plan that ran in it."""
    archives = list(RESULTS.glob("*/runs/*.tar.bz2"))
    assert archives or not RESULTS.exists()
    for run, file, content in (member for path in archives for member in read_members(path)):
        if file == "plan.toml":
            plan = check_plan(with_baselines(parse_toml(content.decode())))
            assert run.partition("/")[0].rpartition("-")[2] == lineage(plan), run


def test_a_shorter_run_is_the_beginning_of_a_longer_one() -> None:
    plan = Plan(method=FedAvg())
    assert lineage(plan) == lineage(with_rounds(plan, 7))
    assert fingerprint(plan) != fingerprint(with_rounds(plan, 7))
