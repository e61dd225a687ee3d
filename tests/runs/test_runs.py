"""Runs and comparisons from the command line: what their folders hold, and that they can be repeated."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from fedptr.cli.main import main
from fedptr.data.load import load_dataset
from fedptr.data.to_samples import to_samples
from fedptr.models.networks import ModelPlan, build_model
from fedptr.runs.folder import new_folder_name
from fedptr.runs.rounds_file import to_json_values

TINY = ["--preset", "paper", "--model", "mlp", "--width", "8", "--set", "local.batch=32", "--set", "machine.threads=1"]
PTR = ["--set", "method.H=1", "--set", "method.R=2", "--set", "method.ipc=1"]
RUN_FILES = {
    "plan.toml", "split.json", "rounds.jsonl", "summary.json", "class_scores.json", "weights.safetensors",
    "model.json", "checkpoint", "lock",
}  # fmt: skip
Capture = pytest.CaptureFixture[str]


def run(out: Path, *argv: str, command: str = "run") -> dict[str, Any]:
    assert main([command, *argv, "--out", str(out)]) == 0
    name = "summary.json" if command == "run" else "compare.json"
    return strict((out / name).read_text(encoding="utf-8"))


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def rounds(folder: Path) -> list[dict[str, Any]]:
    return [strict(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]


def untimed(value: Any) -> Any:
    """Without what a clock says."""
    if isinstance(value, dict):
        return {key: untimed(item) for key, item in value.items() if not key.startswith("seconds")}
    return [untimed(item) for item in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small FedPTR run that several tests look at."""
    out = tmp_path_factory.mktemp("made") / "out"
    run(out, *TINY, *PTR, "--rounds", "6", "--participation", "0.5", "--set", "local.lr=0.1")
    return out


def test_matching_that_mimics_nothing_is_told(tmp_path: Path, capsys: Capture) -> None:
    """Also after a resume, whose records come from the file."""
    plan = [*TINY, *PTR, "--method", "fedptr-s", "--rounds", "7", "--set", "local.lr=0.1"]
    sound = run(tmp_path / "sound", *plan, "--set", "method.beta=0.01")
    assert sound["matching"]["times"] == 4
    assert sound["matching"]["loss"] < 1
    assert "mimics nothing" not in capsys.readouterr().err
    losses = [r["server"]["match_after"] for r in rounds(tmp_path / "sound") if "match_after" in r.get("server", {})]
    assert sound["matching"]["loss"] == pytest.approx(statistics.median(losses))
    wild = run(tmp_path / "wild", *plan, "--set", "method.beta=3")
    assert wild["matching"]["loss"] > 1
    words = f"its matching loss is {wild['matching']['loss']:.2f} (median of 4), and a student that stays where it is"
    assert words in capsys.readouterr().err
    (tmp_path / "wild" / "summary.json").unlink()
    assert main(["resume", str(tmp_path / "wild")]) == 0
    assert words in capsys.readouterr().err
    assert "matching" not in run(tmp_path / "fedavg", *TINY, "--method", "fedavg", "--rounds", "2")


def test_what_a_folder_holds(made: Path) -> None:
    assert {path.name for path in made.iterdir()} == RUN_FILES | {"auxiliary"}
    assert len(list((made / "auxiliary").glob("round000[1-6].png"))) == 6
    assert {oct(path.stat().st_mode & 0o444) for path in made.iterdir()} == {oct(0o444)}, "others may read them"
    summary, records = strict((made / "summary.json").read_text()), rounds(made)
    accuracies = [record["test_accuracy"] for record in records]
    assert [record["round"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert all(len(record["cohort"]) == 5 for record in records)
    assert summary["accuracy"] == pytest.approx(statistics.fmean(accuracies[-5:]), abs=1e-12)
    assert summary["accuracy"] != pytest.approx(statistics.fmean(accuracies), abs=1e-12)
    assert summary["accuracy_best"] == max(accuracies)
    assert summary["accuracy_final"] == accuracies[-1]
    assert summary["seconds"] >= sum(record["seconds"]["total"] for record in records) > 0
    assert 50e6 < summary["peak_memory_bytes"] < 50e9
    assert len(summary["weights_sha256"]) == 64
    assert set(summary["versions"]) >= {"fedptr", "python", "torch", "numpy"}
    assert summary["split_sha256"] == strict((made / "split.json").read_text())["sha256"]
    assert any("match_after" in client for record in records for client in record["clients"]), "nothing was matched"


def test_the_weights_load_into_the_model_and_give_the_recorded_accuracy(made: Path) -> None:
    dataset = load_dataset("digits")
    model = build_model(ModelPlan("mlp", width=8), (1, 8, 8), 10)
    model.load_state_dict(load_file(made / "weights.safetensors"))
    _, test = to_samples(dataset, "cpu")
    x, y = test.take(torch.arange(len(test)))
    accuracy = float((model(x).argmax(1) == y).double().mean())
    assert accuracy == pytest.approx(strict((made / "summary.json").read_text())["accuracy_final"], abs=1e-9)


def test_the_written_plan_repeats_the_run(made: Path, tmp_path: Path) -> None:
    again = run(tmp_path / "again", str(made / "plan.toml"))
    assert again["weights_sha256"] == strict((made / "summary.json").read_text())["weights_sha256"]
    assert untimed(rounds(tmp_path / "again")) == untimed(rounds(made))
    for name in ("plan.toml", "split.json", "weights.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (made / name).read_bytes()


def test_the_seed_matters(made: Path, tmp_path: Path) -> None:
    other = run(tmp_path / "other", str(made / "plan.toml"), "--seed", "1")
    first = strict((made / "summary.json").read_text())
    assert other["weights_sha256"] != first["weights_sha256"]
    assert other["split_sha256"] == first["split_sha256"], "the split has a seed of its own"


def test_fedptr_without_pull_is_fedavg(made: Path, tmp_path: Path) -> None:
    same = ["--rounds", "5", *TINY]
    fedavg = run(tmp_path / "a", *same, "--method", "fedavg")["weights_sha256"]
    assert run(tmp_path / "b", *same, *PTR, "--set", "method.lam=0")["weights_sha256"] == fedavg
    assert run(tmp_path / "c", *same, *PTR, "--set", "method.observe=true")["weights_sha256"] == fedavg
    assert run(tmp_path / "d", *same, *PTR, "--set", "method.lam=0.5")["weights_sha256"] != fedavg


def test_rounds_that_are_not_evaluated(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    summary = run(out, *TINY, "--method", "fedavg", "--rounds", "5", "--set", "run.eval_every=2")
    evaluated = {record["round"]: record["test_accuracy"] for record in rounds(out) if "test_accuracy" in record}
    assert list(evaluated) == [2, 4, 5]
    assert summary["accuracy"] == pytest.approx(statistics.fmean(evaluated.values()))
    assert "round 1/5  accuracy      –" in capsys.readouterr().err, "no accuracy is known yet"


def test_json_has_no_nan() -> None:
    value = {"a": [1.0, float("nan")], "b": {"c": float("-inf")}, "d": 3}
    assert strict(json.dumps(to_json_values(value), allow_nan=False)) == {"a": [1.0, None], "b": {"c": None}, "d": 3}


# Where results go


def refused(capsys: Capture, *argv: str) -> str:
    capsys.readouterr()
    assert main(list(argv)) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


def test_an_existing_folder_is_not_overwritten(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    once = [*TINY, "--set", "method.name=fedavg", "--rounds", "1"]
    run(out, *once)
    before = {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    words = "already holds something; choose another --out, add --force"
    assert words in refused(capsys, "run", *once, "--out", str(out))
    assert words in refused(capsys, "compare", *once, "--methods", "fedavg", "--out", str(out))
    assert {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert run(out, *once, "--seed", "5", "--force")["seed"] == 5
    assert {path.name for path in out.iterdir()} == RUN_FILES


@pytest.mark.parametrize(
    "content", [["thesis.txt"], ["plan.toml"], ["plan.toml", "rounds.jsonl", "thesis.txt"], ["a/b"]]
)
def test_force_replaces_only_what_fedptr_made(content: list[str], tmp_path: Path, capsys: Capture) -> None:
    """A plan of one's own beside one's own files is not a folder of results, nor is one with something added."""
    for name in content:
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text("mine")
    argv = ["run", *TINY, "--rounds", "1", "--out", str(tmp_path / "out"), "--force"]
    assert "was not made by fedptr, so --force does not replace" in refused(capsys, *argv)
    assert all((tmp_path / "out" / name).read_text() == "mine" for name in content)


def test_things_in_the_way(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["run", *TINY, "--method", "fedavg", "--rounds", "1", "--force", "--out"]
    (tmp_path / "file").write_text("mine")
    assert "cannot be used for results (File exists)" in refused(capsys, *argv, str(tmp_path / "file"))
    assert "(Not a directory)" in refused(capsys, *argv, str(tmp_path / "file" / "below"))
    assert (tmp_path / "file").read_text() == "mine"
    run(tmp_path / "real", *argv[1:-2])
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert "(Cannot call rmtree on a symbolic link)" in refused(capsys, *argv, str(tmp_path / "link"))

    def read_only(*_: object, **__: object) -> None:  # root may write anywhere, so a real one would prove nothing
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", read_only)
    assert "cannot be used for results (Permission denied)" in refused(capsys, *argv, str(tmp_path / "new"))


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    run(tmp_path, *TINY, "--method", "fedavg", "--rounds", "1")


def test_without_out_a_new_name_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    for expected in ("runs/fedavg-digits-seed3", "runs/fedavg-digits-seed3-2"):
        assert main(["run", *TINY, "--method", "fedavg", "--rounds", "1", "--seed", "3"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"results: {expected}"
        assert {path.name for path in Path(expected).iterdir()} == RUN_FILES
    assert new_folder_name("other") == Path("runs/other")


# Splits


def test_a_saved_split_is_used(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "split.json"
    how = ["--clients", "5", "--alpha", "0.5", "--set", "split.seed=9", "--preset", "paper"]
    assert main(["partition", *how, "--out", str(path)]) == 0
    out = capsys.readouterr().out
    saved = strict(path.read_text())["sha256"]
    assert f"sha256 {saved[:12]}" in out
    assert {p.name for p in tmp_path.iterdir()} == {"split.json", "split.png", "split.svg"}
    once = [*TINY, "--method", "fedavg", "--rounds", "1"]
    assert run(tmp_path / "a", *once, *how)["split_sha256"] == saved
    assert run(tmp_path / "b", *once, "--clients", "5", "--split", str(path))["split_sha256"] == saved
    assert run(tmp_path / "c", str(tmp_path / "b/plan.toml"))["split_sha256"] == saved
    assert "exists; choose another --out" in refused(capsys, "partition", *how, "--out", str(path))
    path.unlink()
    assert "split.png exists" in refused(capsys, "partition", *how, "--out", str(path))
    assert main(["partition", *how, "--out", str(path), "--force"]) == 0

    content = strict(path.read_text())
    content["clients"][0][0], content["clients"][1][0] = content["clients"][1][0], content["clients"][0][0]
    path.write_text(json.dumps(content))
    argv = ["run", *once, "--clients", "5", "--split", str(path), "--out", str(tmp_path / "d")]
    assert "was changed after it was saved" in refused(capsys, *argv)
    path.write_text(path.read_text()[:100])
    assert "is not JSON" in refused(capsys, *argv)
    assert not (tmp_path / "d").exists()


# Comparisons


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four methods, two of which come to FedAvg by their own settings, with two seeds."""
    out = tmp_path_factory.mktemp("compared") / "out"
    plan = out.parent / "plan.toml"
    plan.write_text("[methods.fedprox]\nmu = 0.0\n[methods.feddc]\nalpha = 0.3\n", encoding="utf-8")
    run(
        out, str(plan), *TINY, *PTR, "--methods", "fedavg,fedprox,scaffold,fedptr", "--seeds", "2", "--rounds", "5",
        "--seed", "4", "--participation", "0.5", "--set", "methods.fedptr.lam=0", command="compare",
    )  # fmt: skip
    return out


def test_every_method_gets_the_same_conditions(compared: Path) -> None:
    results = strict((compared / "compare.json").read_text())
    assert list(results) == ["fedavg", "fedprox", "scaffold", "fedptr"]
    for k, seed in enumerate((4, 5)):
        runs = {name: compared / name / f"seed{seed}" for name in results}
        assert all({path.name for path in folder.iterdir()} == RUN_FILES for folder in runs.values())
        assert len({(folder / "split.json").read_bytes() for folder in runs.values()}) == 1
        cohorts = {name: [record["cohort"] for record in rounds(folder)] for name, folder in runs.items()}
        assert cohorts["fedavg"] == cohorts["fedprox"] == cohorts["scaffold"] == cohorts["fedptr"]
        # The same initial weights and batches too, or three methods that come to FedAvg would not agree to the bit.
        sha = {name: results[name][k]["weights_sha256"] for name in results}
        assert sha["fedavg"] == sha["fedprox"] == sha["fedptr"] != sha["scaffold"]
        # SCAFFOLD's first round is FedAvg's: its control variates start at zero.
        assert rounds(runs["scaffold"])[0]["clients"][0]["train_loss"] == pytest.approx(
            rounds(runs["fedavg"])[0]["clients"][0]["train_loss"], rel=0.05
        )
    assert results["fedavg"][0]["weights_sha256"] != results["fedavg"][1]["weights_sha256"]
    assert results["fedavg"][0]["split_sha256"] == results["fedavg"][1]["split_sha256"]


def test_a_run_of_a_comparison_can_be_repeated_alone(compared: Path, tmp_path: Path) -> None:
    again = run(tmp_path / "again", str(compared / "scaffold/seed5/plan.toml"))
    assert again["weights_sha256"] == strict((compared / "compare.json").read_text())["scaffold"][1]["weights_sha256"]


def test_the_table_and_the_curves_of_a_comparison(compared: Path) -> None:
    results = strict((compared / "compare.json").read_text())
    head, _, *lines = (compared / "table.md").read_text(encoding="utf-8").splitlines()
    assert "mean ± 95 % CI of 2 seeds" in head
    assert [line.split(" | ")[0].strip("| ") for line in lines] == list(results)
    for line, runs in zip(lines, results.values(), strict=True):
        accuracies = [100 * summary["accuracy"] for summary in runs]
        half = 12.706 * statistics.stdev(accuracies) / math.sqrt(2)  # Student's t of 97.5 % for two seeds
        shown = float(line.split(" ± ")[1].split()[0])
        assert f"{statistics.fmean(accuracies):.2f} ± " in line
        assert shown == pytest.approx(half, rel=1e-3, abs=0.006)
    best = max(results, key=lambda name: statistics.fmean(s["accuracy"] for s in results[name]))
    assert any(line.startswith(f"| {best} ") and " * " in line for line in lines)
    with Image.open(compared / "curves.png") as picture:
        assert picture.size == (1650, 660)
        colours = {pixel for _, pixel in picture.convert("RGB").getcolors(1 << 20) or []}
    assert (0xD5, 0x5E, 0x00) in colours, "FedPTR's colour"
    assert (0x00, 0x9E, 0x73) in colours, "SCAFFOLD's colour"
    assert ElementTree.parse(compared / "curves.svg").getroot().tag.endswith("svg")


def test_a_comparison_prints_its_table(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    once = [*TINY, "--rounds", "1", "--set", "method.mu=0.1"]  # FedAvg has no μ, FedProx has
    run(tmp_path / "out", *once, "--methods", "fedavg, fedprox", "--seeds", "2", command="compare")
    out = capsys.readouterr().out
    flat = " ".join(out.split())
    assert "digits, dirichlet(0.04), 10 clients, 100% participation, 1 round" in flat
    assert "mean ± 95 % CI of 2 seeds" in flat
    assert out.count("±") == 3
    assert f"results: {tmp_path / 'out'}" in out
    assert "mu = 0.1" in (tmp_path / "out/fedprox/seed0/plan.toml").read_text()
    assert "mu =" not in (tmp_path / "out/fedavg/seed0/plan.toml").read_text()
    # --force replaces a comparison too.
    run(tmp_path / "out", *once, "--methods", "fedprox", "--force", command="compare")
    assert "±" not in capsys.readouterr().out
    assert not (tmp_path / "out/fedavg").exists()


def test_a_summary_does_not_say_in_which_folder_the_data_was(tmp_path: Path) -> None:
    """Results are shared; where they were made is not."""
    x, y = np.random.default_rng(0).integers(0, 255, (40, 1, 8, 8), dtype=np.uint8), np.arange(40) % 2
    np.savez(tmp_path / "mine.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    asked = ["--dataset", str(tmp_path / "mine.npz"), "--clients", "2", "--min-size", "1", "--rounds", "1"]
    assert main(["run", *asked, "--partition", "iid", "--out", str(tmp_path / "run")]) == 0
    assert strict((tmp_path / "run" / "summary.json").read_text())["data"] == "mine.npz (.npz file)"


def test_a_method_that_diverges_does_not_stop_the_others(tmp_path: Path, capsys: Capture) -> None:
    out, broken = tmp_path / "out", ["--set", "methods.fedprox.mu=1e30", "--rounds", "2"]
    argv = ["compare", *TINY, *broken, "--methods", "fedprox,fedavg", "--seeds", "2", "--out", str(out)]
    for again in (argv, ["resume", str(out)]):
        assert main(again) == 1
        told = capsys.readouterr()
        assert "failed" in told.out
        assert "seed 0, fedprox, round 1, client" in told.err
        assert "2 of 4 runs failed" in told.err
        results = strict((out / "compare.json").read_text())
        assert [len(results[name]) for name in ("fedprox", "fedavg")] == [0, 2]
        text = (out / "table.md").read_text(encoding="utf-8")
        assert "| fedprox | failed | – | – | – |" in text
        assert text.count("- failed: seed") == 2
    assert main(["compare", *TINY, *broken, "--methods", "fedprox", "--out", str(tmp_path / "all")]) == 1
    assert "every run failed, the first with seed 0, fedprox, round 1" in capsys.readouterr().err
