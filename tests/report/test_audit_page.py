"""Audits on the report page, in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import made_run
from PIL import Image
from report_browser import EVIL, draw_all, emulate, errors, plot, report

from fedptr.audit.audit_json import FORMAT
from fedptr.audit.metrics import measure_attack

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("browser")]


def measured(gain: float, seed: int, n: int = 500) -> dict[str, Any]:
    rng, member = np.random.default_rng(seed), np.arange(2 * n) < n
    return measure_attack(rng.normal(size=2 * n) + gain * member, member, rng, draws=50)


def made_audit(folder: Path, gain: float, auxiliary: bool = False) -> dict[str, Any]:
    """As `fedptr audit` would leave it."""
    client = {name: value for name, value in measured(gain, 1).items() if name not in ("roc", "accuracy_oracle")}
    loss = {**measured(gain, 2), "clients": [{"client": 0, **client}, {"client": 1, "members": 3, "non_members": 2}]}
    loss["yeom"] = {"threshold": 1.0, "accuracy": 0.6, "tpr": 0.7, "fpr": 0.5}
    lira = {**measured(2 * gain, 3), "clients": loss["clients"]}
    told: dict[str, Any] = {
        "format": FORMAT, "method": "fedptr", "dataset": "digits", "run_seed": 0, "target": "whole",
        "members": 500, "non_members": 500, "attacks": {"loss": loss, "lira online": lira},
    }  # fmt: skip
    (folder / "audit").mkdir()
    if auxiliary:
        entry = {"closer": 0.9, "closer_ci95": [0.8, 1.0], "distance_own": 0.1, "distance_held": 0.4}
        entry |= {"members": measured(gain, 4), "starts": None, "copies": 0.7, "distance_any": 0.0}
        series = [{"round": t, **entry} for t in (1, 5, 10)]
        told["auxiliary"] = {"note": "It never leaves.", "owners": ["client0"], "series": {"real": series}}
        Image.fromarray(np.arange(64 * 30, dtype=np.uint8).reshape(30, 64)).save(folder / "audit" / "pairs-real.png")
    (folder / "audit" / "audit.json").write_text(json.dumps(told))
    return told


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("page")
    for method, gain in (("fedavg", 0.5), ("fedptr", 1.0)):
        made_run(base / "runs" / method, {"method": {"name": method}})
        made_audit(base / "runs" / method, gain, auxiliary=method == "fedptr")
    made_run(base / "runs" / "feddyn", {"method": {"name": "feddyn"}})
    return report(base / "runs", base / "report.html")


def test_audits_are_drawn(browser: Any, page: str) -> None:
    browser.get(page)
    draw_all(browser)
    assert errors(browser) == []
    axes = plot(browser, "roc", "[plot.layout.xaxis.type, plot.layout.yaxis.type]")
    assert axes == ["log", "log"]
    titles = plot(browser, "roc", "[plot.layout.xaxis.title.text, plot.layout.yaxis.title.text]")
    assert titles == ["false-positive rate, logarithmic", "true-positive rate, logarithmic"]
    assert plot(browser, "roc", "plot.data.map((one) => one.name)") == ["loss", "lira online", "chance"]
    before = plot(browser, "roc", "plot.data[0].y.join()")
    browser.execute_script("""const menu = document.querySelector("select[data-choice=audit]");
        menu.value = 1; menu.dispatchEvent(new Event("change", { bubbles: true }))""")
    assert plot(browser, "roc", "plot.data[0].y.join()") != before
    assert plot(browser, "auxiliary", "plot.data[0].name") == "real: closer to own samples"
    assert plot(browser, "auxiliary", "plot.data.length") == 2, "what there is nothing of is left out"
    text = browser.execute_script("return document.body.textContent")
    assert "lira online" in text
    assert "It never leaves." in text
    assert browser.execute_script("return document.querySelector('img.pairs').naturalWidth") == 64
    assert errors(browser) == []


def test_a_phone_need_not_scroll_sideways(browser: Any, page: str) -> None:
    emulate(browser, 390)
    try:
        browser.get(page)
        draw_all(browser)
        browser.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    finally:
        emulate(browser, None)


def test_whatever_is_in_the_file(browser: Any, tmp_path: Path) -> None:
    """Text from it is text; what is not an audit is left out, and that is said."""
    made_run(tmp_path / "runs" / "a", {"method": {"name": "fedavg"}})
    told = made_audit(tmp_path / "runs" / "a", 1.0, auxiliary=True)
    told["attacks"][EVIL] = told["attacks"].pop("loss")
    told["auxiliary"]["note"] = EVIL
    (tmp_path / "runs" / "a" / "audit" / "audit.json").write_text(json.dumps(told))
    for name, spoil in {
        "b": lambda told: told["attacks"]["loss"].update(auc="1"),
        "c": lambda told: told["attacks"]["loss"].update(clients=5),
        "d": lambda told: told.update(format=7),
        "f": lambda told: told["attacks"]["loss"].update(clients=[]),
        "e": lambda told: told["attacks"].update(loss=None),
    }.items():
        made_run(tmp_path / "runs" / name, {"run": {"seed": ord(name)}, "method": {"name": "fedavg"}})
        bad = made_audit(tmp_path / "runs" / name, 1.0)
        spoil(bad)
        (tmp_path / "runs" / name / "audit" / "audit.json").write_text(json.dumps(bad))
    browser.get(report(tmp_path / "runs", tmp_path / "report.html"))
    draw_all(browser)
    assert errors(browser) == []
    assert browser.execute_script("return window.hacked") is None
    text = browser.execute_script("return document.body.textContent")
    assert text.count(EVIL) >= 3
    assert text.count("is not what `fedptr audit` writes") == 5
