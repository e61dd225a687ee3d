"""How the page looks, measured in a real browser: bands, ticks, wide tables, missing charts, colours and words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from heat_map_cells import contrast, read_cells
from made_runs import Extra, made_run
from made_scores import scores_by_client
from report_browser import click, draw_all, emulate, errors, plot, report, wait

from fedptr.runs.plan import Plan

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("browser")]

VISIBLE = "[...document.querySelectorAll('.plot')].filter((one) => one.checkVisibility() && one.data)"
ROUNDS = "one.layout.xaxis.title.text === 'communication round'"


# What is drawn of a chart beyond its axes.
OUTSIDE = """(one) => {
    const within = ([low, high], value) => low <= value && value <= high;
    const inside = (axis, value) => value === null || within(one._fullLayout[axis].range.slice().sort((a, b) => a - b),
        one._fullLayout[axis].type === "log" ? Math.log10(value) : value);
    const bars = ({ y, error_y: bar }) => (bar?.visible ? [y[0] + bar.array[0], y[0] - bar.arrayminus[0]] : []);
    return one.data.filter((trace) => trace.type === "scatter" && trace.mode !== "text")
        .filter((trace) => ![...trace.y, ...bars(trace)].every((value) => inside("yaxis", value)) ||
            !trace.x.every((value) => inside("xaxis", value)))
        .map((trace) => `${one.closest("figure").dataset.chart}: ${trace.name}`);
}"""
# The kind of a chart, and the points of its longest trace.
POINTS = """(one) => [one.closest("figure").dataset.chart, Math.max(...one.data.map((trace) => (trace.type === "scatter"
    ? trace.x.filter((x, i) => x !== null && trace.y[i] !== null).length : 99)))]"""


def extremes(by_seed: dict[int, tuple[float, float]]) -> Extra:
    """Accuracies and losses by seed, so different that an interval reaches far beyond them; and clients' scores."""

    def told(plan: Plan, t: int) -> dict[str, Any]:
        accuracy, loss = by_seed[plan.run.seed]
        related = {"server": {"relationship": [[1.0, 0.1 * t, -0.9], [0.1 * t, 1.0, 0.4], [-0.9, 0.4, 1.0]]}}
        return {"test_accuracy": accuracy, "test_loss": loss * 1.2**-t, **related, **scores_by_client(0.2)(plan, t)}

    return told


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Group 0: intervals of two seeds, a loss that diverges, FedPTR. Group 1: twelve rounds and a loss near zero."""
    base = tmp_path_factory.mktemp("look")
    for seed in (0, 1):
        for name, told in {
            "fedavg": extremes({0: (0.2, 0.5), 1: (0.7, 3.0)}),
            "feddyn": extremes({0: (0.3, 1e9), 1: (0.35, 2e9)}),
        }.items():
            made_run(base / "runs" / f"{name}{seed}", {"run": {"seed": seed}, "method": {"name": name}}, extra=told)
        told = extremes({0: (0.97, 1.0), 1: (0.99, 1.2)})
        run = {"seed": seed, "rounds": 12}
        made_run(base / "runs" / f"short{seed}", {"run": run, "method": {"name": "scaffold"}}, extra=told)
    made_run(base / "runs" / "fedptr", {"method": {"name": "fedptr"}}, extra=scores_by_client())
    return report(base / "runs", base / "report.html")


@pytest.fixture
def opened(browser: Any, page: str) -> Iterator[Any]:
    browser.get(page)
    yield browser
    emulate(browser, None)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_no_band_is_cut(opened: Any) -> None:
    """Every point of every band, line and error bar is within the range of its axes, whatever is chosen."""
    draw_all(opened)
    outside = f"return {VISIBLE}.flatMap({OUTSIDE})"
    bands = "plot.data.filter((one) => one.fill === 'toself').flatMap((one) => one.y)"
    assert {0, 100} <= set(plot(opened, "accuracy", bands)), "the interval of two seeds is wide"
    assert plot(opened, "loss", "plot.layout.yaxis.type") == "log"
    assert plot(opened, "loss", "plot.layout.yaxis.type || 'linear'", group=1) == "linear"
    assert opened.execute_script(outside) == []
    for value in ("seconds", "mb"):
        for group in (0, 1):
            click(opened, f"#group{group} input[data-switch=x][value={value}]")
        assert opened.execute_script(outside) == [], value
    click(opened, "#group0 input[data-switch=score][value=worst]")
    assert opened.execute_script(outside) == []
    assert errors(opened) == []


def test_rounds_are_whole_numbers(opened: Any, tmp_path: Path) -> None:
    ticks = f"""return {VISIBLE}.filter((one) => {ROUNDS}).map((one) => [one.closest("figure").dataset.chart,
        [...one.querySelectorAll(".xtick text")].map((text) => text.textContent)])"""

    def check() -> None:
        found = opened.execute_script(ticks)
        assert found
        for kind, shown in found:
            assert 2 <= len(shown) <= 13, kind
            assert all(re.fullmatch(r"[\d,]+", text) for text in shown), (kind, shown)

    draw_all(opened)
    check()
    opened.execute_script(f"""{VISIBLE}.filter((one) => {ROUNDS})
        .forEach((one) => Plotly.relayout(one, {{ "xaxis.range[0]": 3.2, "xaxis.range[1]": 6.1 }}))""")
    check()  # after a zoom
    made_run(tmp_path / "runs" / "two", {"run": {"rounds": 2}}, extra=scores_by_client())
    opened.get(report(tmp_path / "runs", tmp_path / "two.html"))
    draw_all(opened)
    check()


def test_wide_tables_scroll_and_say_so(opened: Any) -> None:
    tables = """return [...document.querySelectorAll(".scroll")].filter((one) => one.checkVisibility()).map((one) => ({
        wide: one.scrollWidth > one.clientWidth + 1, more: one.classList.contains("more"),
        shadow: getComputedStyle(one).boxShadow !== "none", hint: one.nextElementSibling.checkVisibility() }))"""
    found = opened.execute_script(tables)
    assert not any(one["hint"] or one["shadow"] for one in found if not one["wide"])
    assert not found[0]["wide"], "a table of accuracies fits on a screen"
    emulate(opened, 390)
    opened.refresh()
    opened.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    wait(opened, "document.querySelectorAll('.scroll.more').length > 2")
    assert opened.execute_script("return document.documentElement.scrollWidth") == 390
    found = opened.execute_script(tables)
    assert sum(one["wide"] for one in found) > 2
    for one in found:
        assert one["wide"] == one["more"] == one["shadow"] == one["hint"]
    opened.execute_script("const one = document.querySelector('.scroll.more'); one.id = 'moved'; one.scrollLeft = 9999")
    wait(opened, "!document.getElementById('moved').classList.contains('more')")


def test_there_is_no_chart_of_nothing_and_none_of_one_point(browser: Any, tmp_path: Path) -> None:
    points = f"return {VISIBLE}.map({POINTS})"
    made_run(tmp_path / "one" / "fedavg", {"run": {"rounds": 1}}, extra=scores_by_client(0.2))
    browser.get(report(tmp_path / "one", tmp_path / "one.html"))
    draw_all(browser)
    kinds = {kind for kind, _ in browser.execute_script(points)}
    assert kinds == {"phases", "clients", "split"}
    assert "Only one round was evaluated" in browser.execute_script("return document.body.innerText")
    made_run(tmp_path / "four" / "fedptr", {"run": {"rounds": 4}, "method": {"name": "fedptr"}})  # it matches once
    browser.get(report(tmp_path / "four", tmp_path / "four.html"))
    draw_all(browser)
    found = browser.execute_script(points)
    assert {kind for kind, _ in found} == {"accuracy", "loss", "phases", "cosines", "split"}
    assert all(count > 1 for _, count in found)
    related = {"server": {"relationship": [[0.5, 0.0], [0.0, 0.5]]}}
    for method in ("fedavg", "feddyn"):
        run = {"run": {"rounds": 4}, "method": {"name": method}}
        made_run(tmp_path / "two" / method, run, extra=lambda plan, t: related)
    browser.get(report(tmp_path / "two", tmp_path / "two.html"))
    draw_all(browser)
    assert "has not learned yet how its clients are related" in browser.execute_script("return document.body.innerText")
    click(browser, "input[data-series='0']")
    words = "return document.querySelector('figure[data-chart=cost] figcaption').innerText"
    assert (
        browser.execute_script(words) == "There is no chart of cost and accuracy: it needs two methods that have both."
    )
    click(browser, "input[data-series='1']")
    assert {kind for kind, _ in browser.execute_script(points)} == {"split"}
    click(browser, "input[data-series='0']")
    click(browser, "input[data-series='1']")
    assert {kind for kind, _ in browser.execute_script(points)} == {"accuracy", "loss", "cost", "phases", "split"}
    assert errors(browser) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_heat_maps_can_be_read(opened: Any, scheme: str) -> None:
    """Numbers on their cells as they are painted; and every cell of the split on the page behind it."""
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    opened.refresh()
    draw_all(opened)
    for kind in ("split", "relationship"):
        figure = opened.find_element("css selector", f"#group0 figure[data-chart={kind}] .plot")
        cells, paper = read_cells(opened, figure)
        assert len(cells) >= 9, kind
        for number, ink, cell in cells:
            assert contrast(ink, cell) >= 4.5, (kind, number, ink, cell)
            if kind == "split":
                assert contrast(cell, paper) >= (3 if scheme == "dark" else 1.5), (cell, paper)


def test_a_logarithmic_axis_says_so(opened: Any) -> None:
    draw_all(opened)
    titles = opened.execute_script(f"""return {VISIBLE}.flatMap((one) => [one.layout.xaxis, one.layout.yaxis])
        .filter((axis) => axis.type === "log").map((axis) => axis.title.text)""")
    assert len(titles) >= 2, "the loss that diverges, and distances"
    assert all(title.endswith(", logarithmic") for title in titles)


def test_the_interval_is_said_once(opened: Any) -> None:
    draw_all(opened)
    text = opened.execute_script("return document.body.innerText")
    assert "± " in text.replace("± is", "")
    assert text.count("confidence interval") == 1


def test_headings_are_words_and_settings_are_folded_up(opened: Any) -> None:
    headings = opened.execute_script("return [...document.querySelectorAll('h2, h3')].map((one) => one.textContent)")
    assert headings[0] == "digits, 10 clients, 50 rounds"
    assert not any(set("=_()") & set(one) for one in headings), headings
    text = opened.execute_script("return document.body.innerText")
    assert "split.alpha" not in text
    opened.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    text = opened.execute_script("return document.body.innerText")
    assert "split.alpha" in text
