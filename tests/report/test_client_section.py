"""The section about clients, without a browser: what is computed of their scores, and what damaged files do to it."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import made_run
from made_scores import scores_by_client

from fedptr.report import client_data
from fedptr.report.find_runs import find_runs
from fedptr.report.group_runs import group_runs
from fedptr.report.page import build_page

HEADING = "<h3>How well it works for every client</h3>"


def tables(name: str = "fedavg", seed: int = 0, **more: Any) -> dict[str, Any]:
    return {"run": {"rounds": 8, "seed": seed}, "method": {"name": name}, **more}


def data_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found
    return json.loads(found[1])


def scores_in(folder: Path) -> list[client_data.SeriesScores]:
    (group,) = group_runs(find_runs([folder])[0])
    return [one for one in client_data.collect_scores(group.series) if one]


def test_there_is_no_section_without_scores(tmp_path: Path) -> None:
    made_run(tmp_path / "run", tables())
    text = build_page(*find_runs([tmp_path]))
    assert HEADING not in text
    assert data_of(text)[0]["clients"] is None


def test_numbers_are_those_of_the_last_five_rounds(tmp_path: Path) -> None:
    for seed in range(3):
        made_run(tmp_path / str(seed), tables(seed=seed), extra=scores_by_client(0.3))
    (one,) = scores_in(tmp_path)
    assert one.same_clients
    assert one.used == "personal"
    means = []
    for run in one.runs:
        last = [record["client_tests"] for record in run.run.records[-5:]]
        by_client = 100 * np.mean([told["personal_accuracy"] for told in last], axis=0)
        assert run.final("personal") == pytest.approx(by_client)
        means.append(np.average(by_client, weights=last[0]["tests"]))
    found = client_data.describe_final(one, "personal")
    assert found.half is not None
    assert found.mean["weighted"] == pytest.approx(np.mean(means))
    assert found.half["weighted"] == pytest.approx(4.302653 * np.std(means, ddof=1) / 3**0.5)
    assert client_data.describe_final(one, "global").worst == [[9]] * 3, "the last client has the lowest level"
    worse = [np.sum(run.final("personal") < run.final("global")) for run in one.runs]
    assert client_data.describe_gain(one)["worse"][0] == pytest.approx(np.mean(worse))


def test_models_that_are_adapted_for_the_evaluation_are_said_to_be(tmp_path: Path) -> None:
    for name in ("ditto", "finetune"):
        made_run(tmp_path / name, tables(name), extra=scores_by_client(0.3))
    text = build_page(*find_runs([tmp_path]))
    assert "Of finetune the personal model is the global one after adaptation" in text
    assert "after adaptation" not in build_page(*find_runs([tmp_path / "ditto"]))


def test_clients_of_other_splits_are_not_averaged(tmp_path: Path) -> None:
    for seed in range(2):
        made_run(tmp_path / str(seed), tables(seed=seed, split={"seed": seed}), extra=scores_by_client())
    (one,) = scores_in(tmp_path)
    assert not one.same_clients
    chart = client_data.series_chart(one, [8])
    assert len(chart["ids"]) == 20
    assert {"9, split 0", "9, split 1"} <= set(chart["ids"])


def test_of_many_clients_the_worst_are_drawn() -> None:
    rows = np.random.default_rng(0).random((3, 5000))
    kept = client_data.choose_dots(rows)
    assert len(kept) <= client_data.DOTS + 3
    assert {int(k) for k in rows.argmin(axis=1)} | {int(k) for k in np.argsort(rows[-1])[:20]} <= set(kept)


def test_one_client_is_enough(tmp_path: Path) -> None:
    made_run(tmp_path / "run", tables(split={"clients": 1, "kind": "iid"}), extra=scores_by_client(0.1))
    text = build_page(*find_runs([tmp_path]))
    assert HEADING in text
    assert data_of(text)[0]["clients"]["series"][0]["ids"] == ["0"]
    assert 'data-chart="clients"' not in text, "a chart of one dot"


def test_fuzzed_scores_do_not_break_the_page(tmp_path: Path) -> None:
    """Unfinished, so that no checksum vouches for the lines."""
    made_run(tmp_path / "good", tables("scaffold"))
    made_run(tmp_path / "run", tables(), finished=False, rounds=3, extra=scores_by_client(0.2))
    path, rng = tmp_path / "run" / "rounds.jsonl", random.Random(0)
    whole = path.read_text()
    start = whole.index('"client_tests"')
    odd = ["NaN", "1e999", "9" * 400, "true", "null", '"</script>"', "[]", "{}", "-1"]
    spots = [m.span() for m in re.finditer(r"(?<=[\[ ])[\d.]+(?=[,\]])", whole) if m.start() > start]
    for _ in range(80):
        first, last = rng.choice(spots)
        path.write_text(whole[:first] + rng.choice(odd) + whole[last:])
        runs, problems = find_runs([tmp_path])
        assert len(runs) + len(problems) == 2
        data_of(build_page(runs, problems))


def test_a_relationship_is_shown_as_correlations(tmp_path: Path) -> None:
    told = {"server": {"relationship": [[4.0, -1.0], [-1.0, 1.0]]}}
    made_run(tmp_path / "run", tables(), extra=lambda plan, t: told if t < 6 else {})
    (found,) = data_of(build_page(*find_runs([tmp_path])))[0]["relationships"]
    assert found == {"label": "fedavg", "round": 5, "z": [[1.0, -0.5], [-0.5, 1.0]], "learned": True}
