"""The report without a browser: which runs are found, how they are grouped, and what is computed of them."""

from __future__ import annotations

import json
import random
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from damaged_files import damage
from made_runs import made_run

from fedptr.cli.main import main
from fedptr.methods import all_methods
from fedptr.plots import SPARE_LOOKS, choose_looks
from fedptr.report import condition_words, fedptr_data
from fedptr.report import means_over_seeds as series
from fedptr.report.find_runs import find_runs, load_run
from fedptr.report.group_runs import group_runs
from fedptr.report.page import build_page, embed_json
from fedptr.report.series_styles import choose_styles
from fedptr.runs.plan import check_plan

Capture = pytest.CaptureFixture[str]


def tables(name: str = "fedavg", seed: int = 0, rounds: int = 8, **more: Any) -> dict[str, Any]:
    method = {"name": name, **more.pop("method", {})}
    return {"run": {"rounds": rounds, "seed": seed, **more.pop("run", {})}, "method": method, **more}


def data_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found
    return json.loads(found[1])


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with three seeds, and FedPTR with two settings."""
    base = tmp_path_factory.mktemp("compared")
    for seed in range(3):
        for method in ("fedavg", "scaffold"):
            made_run(base / method / f"seed{seed}", tables(method, seed))
    for H in (5, 20):
        made_run(base / f"H{H}", tables("fedptr", 0, method={"H": H}))
    return base


def test_the_table_says_over_how_many_rounds_accuracy_is_averaged(tmp_path: Path) -> None:
    def heading(*rounds: int) -> str:
        for number in rounds:
            made_run(tmp_path / f"{rounds}" / f"run{number}", tables(rounds=number))
        page = build_page(find_runs([tmp_path / f"{rounds}"])[0], [], [])
        return ", ".join(re.findall(r"accuracy %, ([^<]+)<", page))

    assert heading(2) == "mean of the last two rounds"
    assert heading(1) == "after the last round"
    assert heading(8) == "mean of the last five rounds"


def test_no_two_methods_look_alike() -> None:
    """Each declares its own; one that declares none gets one of the others."""
    declared = [method.look for method in all_methods().values()]
    assert None not in declared
    looks = [look[:2] for look in [*filter(None, declared), *SPARE_LOOKS]]
    assert len(set(looks)) == len(looks)
    chosen = choose_looks({"mine": None, "fedavg": all_methods()["fedavg"].look, "yours": None})
    assert chosen == {"mine": SPARE_LOOKS[0], "fedavg": all_methods()["fedavg"].look, "yours": SPARE_LOOKS[1]}


def test_seeds_are_put_together_and_settings_are_named(compared: Path) -> None:
    runs, problems = find_runs([compared])
    (one,) = group_runs(runs)
    assert not problems
    assert [(series.label, len(series.runs)) for series in one.series] == [
        ("fedavg", 3), ("scaffold", 3), ("fedptr H=5", 1), ("fedptr H=20", 1),
    ]  # fmt: skip
    assert one.title == "digits, 10 clients, 8 rounds"
    assert "(α = 0.04; the smaller, the more the clients differ). In every round all clients take part." in one.about


def test_other_conditions_are_other_groups(compared: Path, tmp_path: Path) -> None:
    made_run(tmp_path / "alpha", tables(split={"alpha": 0.5}))
    made_run(tmp_path / "lr", tables(local={"lr": 0.5}))
    made_run(tmp_path / "aside", tables(seed=7, data={"seed": 3}, output={"pictures": 0}, run={"checkpoint_every": 2}))
    runs, _ = find_runs([compared, tmp_path])
    groups = group_runs(runs)
    assert [one.title for one in groups] == [
        "digits, 10 clients, 8 rounds",
        "digits, 10 clients, 8 rounds, Dirichlet split α = 0.5",
        "digits, 10 clients, 8 rounds, learning rate 0.5",
    ]
    assert {one.label: len(one.runs) for one in groups[0].series}["fedavg"] == 4
    colours = {one.method: choose_styles(groups)[one.key]["light"] for each in groups for one in each.series}
    assert colours["fedavg"] == "#333333"
    assert len(set(colours.values())) == 3


def test_a_label_names_only_what_is_unusual(tmp_path: Path) -> None:
    """H differs within the first group; β is the same there, and unusual in the second."""
    for k, (H, beta, lr) in enumerate([(5, 0.01, 0.1), (20, 0.01, 0.1), (5, 0.02, 0.2)]):
        made_run(tmp_path / str(k), tables("fedptr", method={"H": H, "beta": beta}, local={"lr": lr}))
    first, second = group_runs(find_runs([tmp_path])[0])
    assert [one.label for one in first.series] == ["fedptr H=5", "fedptr H=20"]
    assert [one.label for one in second.series] == ["fedptr beta=0.02"]


@pytest.mark.parametrize(("split", "words"), [
    ({"kind": "iid"}, "spread evenly over the clients"),
    ({"kind": "shards", "shards": 1}, "every client has 1 shard."),
    ({"kind": "classes", "classes": 3}, "Every client has samples of 3 classes."),
    ({"kind": "quantity"}, "Clients differ in the number of their samples"),
    ({"kind": "dirichlet-by-client"}, "every client’s mix of classes (α = 0.04"),
    ({"file": "a/mine.json"}, "The split is read from mine.json."),
])  # fmt: skip
def test_every_kind_of_split_has_words(split: dict[str, Any], words: str) -> None:
    plan = check_plan(tables(split=split, run={"participation": 0.3}))
    assert words in condition_words.describe_training(plan)
    assert "30 % of the clients take part" in condition_words.describe_training(plan)
    assert condition_words.write_heading(plan, {"split.kind": "x"}).startswith("digits, 10 clients, 8 rounds, ")


def test_a_band_shows_what_is_possible() -> None:
    """The interval of two seeds may reach far beyond 0 and 100 %; a mean that is beyond stays in its band."""
    found = series.mean_and_band([[10.0, 50.0, 120.0], [90.0, 51.0, 122.0]], highest=100)
    assert (found["low"][0], found["high"][0]) == (0, 100)
    assert 0 < found["low"][1] < 50.5 < found["high"][1] < 100
    assert found["high"][2] == 121
    loss = series.mean_and_band([[0.1], [2.0]])
    assert loss["low"] == [0]
    assert loss["high"][0] > 10


def test_the_interval_is_students(compared: Path) -> None:
    runs = [load_run(compared / "fedavg" / f"seed{seed}") for seed in range(3)]
    accuracy = [statistics.fmean(100 * r["test_accuracy"] for r in run.records[-5:]) for run in runs]
    result = series.final_results(runs)
    assert result["accuracy"] == pytest.approx(statistics.fmean(accuracy))
    assert result["half"] == pytest.approx(4.302653 * statistics.stdev(accuracy) / 3**0.5, rel=1e-6)
    assert series.final_results(runs[:1])["half"] is None
    seconds = [sum(r["seconds"]["total"] for r in run.records) for run in runs]
    assert result["seconds"] == pytest.approx(statistics.fmean(seconds))
    assert result["mb"] == pytest.approx(8 * 0.32)
    curves = series.mean_curves(runs)
    assert curves["rounds"] == list(range(1, 9))
    assert curves["mb"][-1] == pytest.approx(8 * 0.32)
    third = [100 * run.records[2]["test_accuracy"] for run in runs]
    assert curves["accuracy"]["mean"][2] == pytest.approx(statistics.fmean(third), rel=1e-4)
    width = curves["accuracy"]["high"][2] - curves["accuracy"]["low"][2]
    assert width == pytest.approx(2 * 4.302653 * statistics.stdev(third) / 3**0.5, rel=1e-2)
    assert "low" not in series.mean_curves(runs[:1])["accuracy"]


def test_phases_add_up(compared: Path) -> None:
    run = load_run(compared / "H5")
    phases = series.seconds_by_phase([run])
    assert set(phases) == {"training", "matching", "projection", "aggregation", "evaluation", "other"}
    assert sum(phases.values()) == pytest.approx(statistics.fmean(r["seconds"]["total"] for r in run.records))


def test_a_repeated_seed_does_not_narrow_the_interval(compared: Path, tmp_path: Path) -> None:
    made_run(tmp_path / "again", tables("scaffold", 1))
    runs, _ = find_runs([compared, tmp_path])
    found = next(one for one in group_runs(runs)[0].series if one.method == "scaffold")
    assert (len(found.runs), len(found.repeats)) == (3, 1)
    assert "repeats a seed, not counted" in build_page(runs, [])


def test_a_folder_that_is_named_twice_is_shown_once(compared: Path) -> None:
    runs, _ = find_runs([compared, compared / "fedavg", compared / "fedavg" / ".." / "H5"])
    assert len(runs) == 8


def test_unfinished_runs_are_shown_as_far_as_they_got(compared: Path, tmp_path: Path) -> None:
    made_run(tmp_path / "half", tables("fedavg", 5), finished=False, rounds=3)
    with open(tmp_path / "half" / "rounds.jsonl", "ab") as file:
        file.write(b'{"round": 4, "test_acc')  # a kill in the middle of a line
    made_run(tmp_path / "none", tables("feddc"), finished=False, rounds=1)
    (tmp_path / "none" / "rounds.jsonl").write_bytes(b"")
    runs, problems = find_runs([compared, tmp_path])
    assert not problems
    text = build_page(runs, problems)
    (one,) = data_of(text)
    found = {each["label"]: each for each in one["series"]}
    half = found["fedavg, seed 5 (unfinished, 3/8 rounds)"]
    assert half["curves"]["rounds"] == [1, 2, 3]
    assert found["fedavg"]["final"]["seeds"] == 3, "the mean is over finished runs"
    assert "feddc, seed 0 (unfinished, 0/8 rounds)" in text
    assert not any(label.startswith("feddc") for label in found), "there is nothing to draw of it"


@pytest.mark.parametrize(("name", "content", "words"), [
    ("plan.toml", "[run]\nrounds = -1\n", "run.rounds must be at least 1"),
    ("plan.toml", "\x00", "is not valid TOML"),
    ("rounds.jsonl", "", "was changed since its run was finished"),
    ("summary.json", "{}", "holds no finished run"),
    ("summary.json", None, "line 2 of rounds.jsonl is not of round 2"),
])  # fmt: skip
def test_damaged_runs_are_left_out_with_one_line(
    name: str, content: str | None, words: str, tmp_path: Path, capsys: Capture
) -> None:
    made_run(tmp_path / "runs" / "good", tables())
    made_run(tmp_path / "runs" / "bad", tables("scaffold"))
    bad = tmp_path / "runs" / "bad"
    if content is None:
        (bad / name).unlink()
        lines = (bad / "rounds.jsonl").read_bytes().splitlines(True)
        (bad / "rounds.jsonl").write_bytes(b"".join([lines[0], *lines[2:]]))
    else:
        (bad / name).write_text(content)
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "runs"), "-o", str(out)]) == 0
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert words in said.err
    assert "1 run," in said.out
    assert f"{bad} was left out" in out.read_text(encoding="utf-8")


def test_a_damaged_split_or_picture_costs_only_itself(tmp_path: Path) -> None:
    made_run(tmp_path / "run", tables("fedptr"))
    (tmp_path / "run" / "split.json").write_text("{}")
    (tmp_path / "run" / "auxiliary" / "round0003.png").write_bytes(b"no picture")
    (one,) = data_of(build_page(*find_runs([tmp_path])))
    assert not one["splits"]
    assert "split.json does not say which samples clients have" in one["problems"][0]
    assert [sheet["round"] for sheet in one["views"][0]["sheets"]] == [1, 2, 4, 5, 6, 7, 8]


def test_bad_input_is_one_sentence(compared: Path, tmp_path: Path, capsys: Capture) -> None:
    def refused(*argv: str) -> str:
        capsys.readouterr()
        assert main(["report", *argv]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        return err

    out = ["-o", str(tmp_path / "report.html")]
    assert "missing does not exist; name folders" in refused(str(tmp_path / "missing"), *out)
    assert "is not a folder" in refused(__file__, *out)
    (tmp_path / "empty").mkdir()
    assert "holds no run" in refused(str(compared), str(tmp_path / "empty"), *out)
    made_run(tmp_path / "bad", tables())
    (tmp_path / "bad" / "plan.toml").write_text("=")
    assert "none of the 1 runs found is sound" in refused(str(tmp_path / "bad"), *out)
    assert "is a folder; name a file" in refused(str(compared), "-o", str(tmp_path / "empty"))
    assert not (tmp_path / "report.html").exists()
    (tmp_path / "report.html").write_text("mine")
    assert "exists; choose another with -o, or add --force" in refused(str(compared), *out)
    assert "cannot be written" in refused(str(compared), "-o", str(tmp_path / "report.html" / "below"))
    assert (tmp_path / "report.html").read_text() == "mine"
    assert main(["report", str(compared), *out, "--force"]) == 0
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_view_of_fedptr(compared: Path) -> None:
    run = load_run(compared / "H5")
    assert run.summary
    found = fedptr_data.collect_diagnostics(run, run.summary["layers"])
    assert found
    assert found["match_before"][:3] == [None] * 3, "nothing is matched before warm-up"
    assert found["match_after"][5] == pytest.approx(0.8 * found["match_before"][5], rel=1e-3)
    assert found["layers"][0] == "features.0.weight"
    assert found["distances"][0][7] == pytest.approx(0.2 * (1 + 1 / 8), rel=1e-3)
    assert fedptr_data.collect_diagnostics(load_run(compared / "fedavg" / "seed0"), None) is None


def test_fuzzed_runs_are_shown_or_left_out(tmp_path: Path) -> None:
    """Unfinished, so that no checksum vouches for the lines."""
    made_run(tmp_path / "good", tables())
    made_run(tmp_path / "bad", tables("fedptr", rounds=6), finished=False)
    path, rng = tmp_path / "bad" / "rounds.jsonl", random.Random(0)
    whole = path.read_bytes()
    numbers = [match.span() for match in re.finditer(rb"(?<=: )[\d.e-]+", whole)]
    odd = [b"NaN", b"-Infinity", b"1e999", b"9" * 400, b"true", b"null", b'"x"', b"[]", b"{}", b"-1"]
    for k in range(120):
        first, last = rng.choice(numbers)
        path.write_bytes(whole[:first] + rng.choice(odd) + whole[last:] if k % 2 else damage(whole, rng))
        runs, problems = find_runs([tmp_path])
        assert len(runs) + len(problems) == 2
        data_of(build_page(runs, problems))


def test_long_runs_are_thinned() -> None:
    kept = series.thin_positions(10_000)
    assert len(kept) == series.POINTS
    assert (kept[0], kept[-1]) == (0, 9_999)
    assert series.thin_positions(3) == [0, 1, 2]
    assert series.thin_positions(0) == []


def test_pictures_beyond_the_budget_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("fedptr", "fedptr-s"):
        made_run(tmp_path / method, tables(method))
    first = data_of(build_page(*find_runs([tmp_path])))[0]["views"]
    assert [len(one["sheets"]) for one in first] == [8, 8]
    monkeypatch.setattr("fedptr.report.page.BUDGET", sum(len(sheet["src"]) for sheet in first[0]["sheets"]))
    less = data_of(build_page(*find_runs([tmp_path])))[0]["views"]
    assert [len(one["sheets"]) for one in less] == [8, 0]
    assert less[1]["left_out"]


def test_the_same_runs_give_the_same_page(compared: Path) -> None:
    assert build_page(*find_runs([compared])) == build_page(*find_runs([compared]))


def test_json_cannot_end_its_element() -> None:
    text = embed_json(["</script><!--", "&lt;"])
    assert not set("<>&") & set(text)
    assert json.loads(text) == ["</script><!--", "&lt;"]


@pytest.fixture
def reproduced(tmp_path: Path) -> Path:
    """A recipe's folder beside its runs, as `fedptr reproduce` leaves them."""
    for method in ("fedavg", "fedptr"):
        made_run(tmp_path / "runs" / method / "seed0", tables(method))
    cells = [
        {"row": "α <b>", "column": "fedavg", "paper": 55.43, "mean": 41.2, "ci95": 0.4, "accuracies": {"0": 1, "1": 2}},
        {"row": "α <b>", "column": "fedptr", "paper": 69.04, "mean": 40.1, "ci95": 0.2, "gap": -1.1, "gap_ci95": 0.3,
         "paper_gap": 13.61, "verdict": "contradicts", "accuracies": {"0": 40.1, "1": 40.2}},
        {"row": "α <b>", "column": "feddc", "paper": 52.5, "accuracies": {}, "failures": {"0": "it diverged"}},
    ]  # fmt: skip
    folders = {"fedavg": ["runs/fedavg/seed0", "runs/fedavg/seed1"], "fedptr": ["runs/fedptr/seed0"], "feddc": []}
    data = {
        "title": "Table 1",
        "scale": "cpu",
        "reference": "fedavg",
        "reduced": {"model.width": {"paper": [128], "here": [32]}},
    }
    whole = {**data, "cells": [{**cell, "folders": folders[str(cell["column"])]} for cell in cells]}
    (tmp_path / "table1").mkdir()
    (tmp_path / "table1" / "reproduce.json").write_text(json.dumps(whole))
    return tmp_path / "table1"


def test_a_reproduction_is_shown_beside_the_paper(reproduced: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert main(["report", str(reproduced), "-o", str(out)]) == 0
    text = out.read_text()
    assert len(find_runs([reproduced])[0]) == 2, "the runs that its table names, as far as they are there"
    for words in (
        "41.2 ± 0.4",
        "paper 69.0",
        "-1.1 ± 0.3 (+13.6)",
        ">contradicts<",
        "128 → 32",
        ">failed<",
        "α &lt;b&gt;",
    ):
        assert words in text
    assert text.count("95 % confidence") == 1, "what ± is, for a table of several seeds too"


def test_a_reproduction_does_not_lead_out_of_its_folder(reproduced: Path, tmp_path: Path) -> None:
    path = reproduced / "reproduce.json"
    made_run(tmp_path.parent / "elsewhere" / "run", tables())
    path.write_text(path.read_text().replace("runs/fedptr/seed0", "../elsewhere/run"))
    assert len(find_runs([reproduced])[0]) == 1


def test_fuzzed_reproductions_are_shown_or_refused(reproduced: Path, tmp_path: Path, capsys: Capture) -> None:
    path, rng, codes = reproduced / "reproduce.json", random.Random(0), set()
    whole = path.read_bytes()
    odd = [b"NaN", b"1e999", b"null", b'"x"', b"[]", b"{}", b"-1", b"true"]
    values = [match.span() for match in re.finditer(rb'(?<=: )([\d.e-]+|"[^"]*"|\[[^\]]*\])', whole)]
    for k in range(60):
        first, last = rng.choice(values)
        path.write_bytes(whole[:first] + rng.choice(odd) + whole[last:] if k % 2 else damage(whole, rng))
        codes.add(main(["report", str(reproduced), "-o", str(tmp_path / "page.html"), "--force"]))
    assert codes == {0, 2}
    assert "Traceback" not in capsys.readouterr().err
