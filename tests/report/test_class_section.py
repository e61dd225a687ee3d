"""The section about classes: what is computed of class_scores.json, what damaged files do, and how it is painted."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from heat_map_cells import contrast, read_cells
from made_runs import made_run
from report_browser import EVIL, click, draw_all, emulate, errors, plot, report, wait

from fedptr.report.class_data import FEW_CLASSES, collect_classes
from fedptr.report.find_runs import find_runs
from fedptr.report.group_runs import Group, group_runs
from fedptr.report.page import build_page
from fedptr.runs.class_scores import NAME, accuracy_by_class, read_class_scores

HEADING = "<h3>Which classes are learned</h3>"


def write_run(folder: Path, confusion: Any = None, method: str = "fedavg", seed: int = 0, **more: Any) -> Path:
    """A made-up run, with this confusion matrix if there is any; `more`: the names of its classes."""
    made_run(folder, {"run": {"rounds": 4, "seed": seed}, "method": {"name": method}})
    if confusion is not None:
        names = more.get("names") or [f"class {k}" for k in range(len(confusion))]
        told = {"classes": names, "accuracy": accuracy_by_class(confusion), "confusion": confusion}
        (folder / NAME).write_text(json.dumps(told))
    return folder


def group_of(folder: Path) -> Group:
    (group,) = group_runs(find_runs([folder])[0])
    return group


def data_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found
    return json.loads(found[1])


def random_confusion(classes: int, seed: int) -> list[list[int]]:
    """About 80 % of the images of class 0 are right and fewer of each next class; the last class has none."""
    rng, right = np.random.default_rng(seed), np.linspace(0.8, 0.01, classes)
    rows = [rng.multinomial(300, np.where(np.arange(classes) == k, p, (1 - p) / (classes - 1)))
            for k, p in enumerate(right)]  # fmt: skip
    return [*(row.tolist() for row in rows[:-1]), [0] * classes]


def test_accuracies_are_means_over_seeds_that_have_the_file(tmp_path: Path) -> None:
    first, second = [[9, 1, 0], [2, 2, 0], [0, 0, 0]], [[6, 4, 0], [0, 4, 0], [0, 0, 0]]
    write_run(tmp_path / "0", first)
    write_run(tmp_path / "1", second, seed=1)
    write_run(tmp_path / "2", seed=2)  # made before there were such files
    write_run(tmp_path / "other", second, "scaffold")
    write_run(tmp_path / "without", method="feddyn")
    found, problems = collect_classes(group_of(tmp_path).series)
    assert problems == []
    assert found is not None
    assert found["names"] == ["class 0", "class 1", "class 2"]
    rows = {"fedavg": {"accuracy": [75.0, 75.0, None], "seeds": 2, "runs": 3},
            "scaffold": {"accuracy": [60.0, 100.0, None], "seeds": 1, "runs": 1}, "feddyn": None}  # fmt: skip
    assert found["series"] == [rows[series.label] for series in group_of(tmp_path).series]
    confusions = {one["label"]: one["counts"] for one in found["confusions"]}
    assert confusions == {"fedavg, seed 0": first, "fedavg, seed 1": second, "scaffold": second}


def test_there_is_no_section_without_the_file(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    text = build_page(*find_runs([tmp_path]))
    assert HEADING not in text
    assert data_of(text)[0]["classes"] is None


def test_scores_of_an_unfinished_run_are_not_shown(tmp_path: Path) -> None:
    """A run that is made longer still has the file of when it was shorter."""
    folder = write_run(tmp_path / "run", [[1, 0], [0, 1]])
    (folder / "summary.json").unlink()
    assert collect_classes(group_of(tmp_path).series) == (None, [])


@pytest.mark.parametrize("content", [
    "", "[]", "{}", "[" * 100_000, '{"classes": ["a"], "accuracy": [1.0]}',
    '{"classes": ["a"], "accuracy": [0.5], "confusion": [[1]]}',
    '{"classes": ["a"], "accuracy": [null], "confusion": [[0]]}',
    '{"classes": ["a", "b"], "accuracy": [1.0, 1.0], "confusion": [[1, 0], [0]]}',
    '{"classes": [1], "accuracy": [1.0], "confusion": [[1]]}', '{"classes": [], "accuracy": [], "confusion": []}',
    '{"classes": ["a"], "accuracy": [1.0], "confusion": [[1.5]]}',
    '{"classes": ["a"], "accuracy": [1.0], "confusion": [[true]]}',
    '{"classes": ["a", "b"], "accuracy": [2.0, null], "confusion": [[2, -1], [0, 0]]}',
    '{"classes": ["a"], "accuracy": [1.0], "confusion": [[1' + "0" * 400 + "]]}",
])  # fmt: skip
def test_a_damaged_file_is_one_line(tmp_path: Path, content: str) -> None:
    bad = write_run(tmp_path / "runs" / "bad<b>", [[1]])
    write_run(tmp_path / "runs" / "good", [[2, 1], [0, 3]], "scaffold")
    (bad / NAME).write_text(content)
    text = build_page(*find_runs([tmp_path / "runs"]))
    (one,) = data_of(text)
    assert one["damaged_classes"] == [f"{bad / NAME} is damaged"]
    assert text.count("bad&lt;b&gt;/class_scores.json is damaged</li>") == 1
    assert [row is None for row in one["classes"]["series"]] == [True, False]


def test_a_run_with_other_classes_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [[1, 0], [0, 1]])
    write_run(tmp_path / "b", [[1, 0], [0, 1]], seed=1, names=["cat", "dog"])
    found, problems = collect_classes(group_of(tmp_path).series)
    assert found is not None
    assert found["names"] == ["class 0", "class 1"]
    assert problems == [f"{tmp_path / 'b' / NAME} is left out: its classes are not those of {tmp_path / 'a'}"]


def test_many_classes_are_sorted_and_have_no_confusion_matrix(tmp_path: Path) -> None:
    confusion = random_confusion(FEW_CLASSES + 1, 0)
    folder = write_run(tmp_path / "run", confusion)
    text = build_page(*find_runs([tmp_path]))
    found = data_of(text)[0]["classes"]
    shown = found["series"][0]["accuracy"]
    assert shown[:-1] == sorted(shown[:-1])
    assert shown[-1] is None
    by_name = dict(zip(found["names"], shown, strict=True))
    told = read_class_scores(folder / NAME)
    assert by_name["class 3"] == pytest.approx(100 * told["accuracy"][3], rel=1e-4)
    assert found["confusions"] == []
    assert 'data-chart="confusion"' not in text
    assert f"Confusion matrices of more than {FEW_CLASSES} classes are left out" in text


def test_fuzzed_scores_do_not_break_the_page(tmp_path: Path) -> None:
    folder, rng = write_run(tmp_path / "run", [[5, 1], [2, 4]]), random.Random(0)
    whole = (folder / NAME).read_text()
    (run,), _ = find_runs([tmp_path])
    for _ in range(60):
        at = rng.randrange(len(whole))
        (folder / NAME).write_text(
            whole[:at] + rng.choice(["9", "-", "[", "]", '"', "</script>", "null"]) + whole[at + 1 :]
        )
        data_of(build_page([run], []))


@pytest.mark.real
@pytest.mark.xdist_group("browser")
def test_the_maps_have_the_right_numbers_and_can_be_read(browser: Any, tmp_path: Path) -> None:
    """Light and dark, wide and narrow; names of classes stay text."""
    names = [EVIL, "a &lt;b", *(f"class {k}" for k in range(2, 10))]
    confusions = {method: random_confusion(10, seed) for seed, method in enumerate(("fedavg", "scaffold"))}
    for method, confusion in confusions.items():
        write_run(tmp_path / "runs" / method, confusion, method, names=names)
    page = report(tmp_path / "runs", tmp_path / "report.html")
    accuracy = [[100 * value for value in accuracy_by_class(confusions[m]) if value is not None] for m in confusions]
    first = confusions["fedavg"]
    shares = [100 * n / sum(row) for row in first for n in row if n]
    try:
        for scheme in ("light", "dark"):
            media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            for width in (None, 390):
                emulate(browser, width)
                browser.get(page)
                assert not browser.find_element("css selector", "[data-chart=confusion]").is_displayed()
                draw_all(browser)
                digits = 0 if width else 1
                written = {
                    "classes": [f"{value:.{digits}f}" for row in accuracy for value in row],
                    "confusion": ["<1" if value < 0.5 else f"{value:.0f}" for value in shares],
                }
                for kind, expected in written.items():
                    figure = browser.find_element("css selector", f"figure[data-chart={kind}] .plot")
                    cells, _ = read_cells(browser, figure)
                    assert [number for number, _, _ in cells] == expected, (scheme, width, kind)
                    for number, ink, cell in cells:
                        assert contrast(ink, cell) >= 4.5, (scheme, width, kind, number, ink, cell)
                assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        emulate(browser, None)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert plot(browser, "classes", "plot.data[0].text[0][1]").startswith("fedavg, class a &amp;lt;b: ")
    ticks = "[...plot.querySelectorAll('.xtick text')].map((one) => one.textContent)"
    assert plot(browser, "classes", ticks)[0].startswith("<img src=")
    assert browser.execute_script("return window.hacked") is None
    assert errors(browser) == []

    click(browser, "input[data-series='0']")
    assert len(plot(browser, "classes", "plot.data[0].z")) == 1, "a box hides a method here too"
    click(browser, "input[data-series='1']")
    assert "No method with scores by class is chosen." in browser.execute_script("return document.body.innerText")
    browser.execute_script("""const menu = document.querySelector("select[data-choice=confusion]");
        menu.value = "1"; menu.dispatchEvent(new Event("change", { bubbles: true }))""")
    assert plot(browser, "confusion", "plot.data[0].text[1][1]").startswith(
        f"{confusions['scaffold'][1][1]} of 300 of class "
    )
    shut = "document.querySelector('figure[data-chart=confusion]').closest('details')"
    browser.execute_script(f"{shut}.open = false")
    click(browser, "#theme")
    browser.execute_script(f"{shut}.open = true")
    ink = "getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()"
    wait(browser, f"document.querySelector('figure[data-chart=confusion] .plot').layout.font.color === {ink}")
    assert plot(browser, "confusion", "plot.layout.width") > 300
    assert errors(browser) == []
