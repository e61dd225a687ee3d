"""The report in a real browser: everything is drawn, the switches work, on a phone too, and nothing gets in or out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from made_runs import made_run
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from report_browser import EVIL, click, draw_all, emulate, errors, plot, report, wait
from wait_until import until

from fedptr.cli.main import main
from fedptr.runs import summary

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Five methods, two seeds of three, one unfinished run, and another condition."""
    base = tmp_path_factory.mktemp("page")
    for method in ("fedavg", "scaffold", "fedptr"):
        for seed in (0, 1):
            made_run(base / "runs" / method / f"seed{seed}", {"run": {"seed": seed}, "method": {"name": method}})
    made_run(base / "runs" / "s", {"method": {"name": "fedptr-s"}})
    made_run(base / "runs" / "half", {"method": {"name": "feddyn"}}, finished=False)
    made_run(base / "runs" / "iid", {"split": {"kind": "iid"}, "method": {"name": "fedavg"}})
    return report(base / "runs", base / "report.html")


@pytest.fixture
def opened(browser: Any, page: str) -> Iterator[Any]:
    browser.get(page)
    browser.execute_script("localStorage.clear()")
    browser.get(page)
    yield browser
    emulate(browser, None)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_everything_is_drawn_and_nothing_is_loaded(opened: Any) -> None:
    opened.get_log("browser"), opened.get_log("performance")
    opened.refresh()
    count = draw_all(opened)
    assert count == 10 + 4, "ten kinds in the group with FedPTR, four in the other, which has one method"
    assert errors(opened) == []
    bare = opened.execute_script("""
        return [...document.querySelectorAll("figure")].filter((figure) => {
            const text = (name) => figure.querySelector(`.${name}`)?.textContent.trim();
            const marks = figure.querySelectorAll(".trace path, .trace, .hm image, .point").length;
            return !text("gtitle") || !text("xtitle") || !text("ytitle") || !marks;
        }).map((figure) => figure.dataset.chart)""")
    assert bare == [], "charts without a title, an axis name or anything drawn"
    events = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert {url.partition(":")[0] for url in asked} <= {"file", "data", "blob"}
    assert len([url for url in asked if url.startswith("file")]) == 1


def test_a_box_shows_and_hides_a_method_in_all_charts(opened: Any) -> None:
    draw_all(opened)
    names = "plot.data.filter((one) => one.name).map((one) => one.name)"
    before = plot(opened, "accuracy", names)
    assert before[:1] == ["fedavg"]
    assert len(before) == 5
    click(opened, "#group0 input[data-series='0']")
    for kind in ("accuracy", "loss", "cost"):
        assert plot(opened, kind, names) == before[1:]
    assert "fedavg" not in plot(opened, "phases", "plot.layout.yaxis.ticktext")
    assert plot(opened, "accuracy", names, group=1) == ["fedavg"], "another group is left alone"
    click(opened, "#group0 button[data-all='']")
    assert not plot(opened, "accuracy", "plot.checkVisibility()")
    click(opened, "#group0 button[data-all='yes']")
    assert plot(opened, "accuracy", names) == before
    assert errors(opened) == []


def test_the_x_axis_can_be_switched(opened: Any) -> None:
    draw_all(opened)
    last = "[plot.layout.xaxis.title.text, plot.data.find((one) => one.name).x.at(-1)]"
    assert plot(opened, "accuracy", last) == ["communication round", 50]
    click(opened, "#group0 input[data-switch=x][value=seconds]")
    words, seconds = plot(opened, "loss", last)
    assert words == "seconds of computation"
    assert 9 < seconds < 12
    click(opened, "#group0 input[data-switch=x][value=mb]")
    assert plot(opened, "accuracy", last) == ["MB sent, up and down", 16]
    click(opened, "#group0 input[data-switch=cost][value=mb]")
    assert plot(opened, "cost", "plot.layout.xaxis.title.text") == "MB sent, up and down, whole run"
    assert errors(opened) == []


def test_privacy_spent_is_an_axis_where_it_was_promised(browser: Any, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed: pip install 'fedptr[privacy]'")
    argv = ["run", "--method", "fedavg", "--model", "mlp", "--rounds", "4", "--participation", "0.5", "--out"]
    argv[1:1] = ["--set", "run.sampling=bernoulli", "--set", "method.weighting=uniform"]
    private = ["--set", "privacy.clip=1", "--set", "privacy.noise=2"]
    assert main([*argv, str(tmp_path / "runs" / "open")]) == 0
    report(tmp_path / "runs", tmp_path / "open.html")
    assert "ε spent" not in (tmp_path / "open.html").read_text()
    assert main([*argv, str(tmp_path / "runs" / "private"), *private]) == 0
    records = [json.loads(line) for line in (tmp_path / "runs" / "private" / "rounds.jsonl").read_text().splitlines()]
    browser.get(report(tmp_path / "runs", tmp_path / "report.html"))
    draw_all(browser)
    click(browser, "input[data-switch=x][value=epsilon]")
    assert plot(browser, "accuracy", "plot.layout.xaxis.title.text") == "privacy spent, ε"
    drawn = dict(plot(browser, "accuracy", "plot.data.filter((one) => one.name).map((one) => [one.name, one.x])"))
    assert drawn["fedavg"] == [None] * 4
    spent = drawn["fedavg privacy.clip=1, privacy.noise=2"]
    assert spent == pytest.approx([record["epsilon"] for record in records], rel=1e-4)
    click(browser, "input[data-switch=cost][value=epsilon]")
    assert errors(browser) == []


def test_bands_are_there_for_several_seeds_only(opened: Any) -> None:
    wait(opened, "window.report.first")
    assert plot(opened, "accuracy", "plot.data.filter((one) => one.fill === 'toself').length") == 3


def test_the_slider_goes_through_the_auxiliary_images(opened: Any) -> None:
    shown = """const place = document.querySelector("#group0 .sheets");
        return [place.querySelector("output").textContent, place.querySelector("img").src,
                place.querySelector(".owner").textContent, place.querySelectorAll("li").length]"""
    round_, source, owner, classes = opened.execute_script(shown)
    assert (round_, owner, classes) == ("50", "of client 2", 10)
    wait(opened, "document.querySelector('#group0 .sheets img').naturalWidth === 44")
    move = """const slider = document.querySelector("#group0 .sheets input");
        slider.value = 0; slider.dispatchEvent(new Event("input", { bubbles: true }))"""
    opened.execute_script(move)
    first, other, *_ = opened.execute_script(shown)
    assert first == "3"
    assert other != source
    draw_all(opened)
    choose = """const menu = document.querySelector("#group0 select[data-choice=run]");
        menu.value = [...menu.options].find((one) => one.text === "fedptr-s").value;
        menu.dispatchEvent(new Event("change", { bubbles: true }))"""
    before = plot(opened, "cosines", "plot.data[0].y.join()")
    reach = "return document.querySelector('#group0 figure[data-chart=reach]').checkVisibility()"
    assert opened.execute_script(reach)
    assert plot(opened, "reach", "plot.data[0].y.at(-1)") == 0.9
    opened.execute_script(choose)
    assert not opened.execute_script(reach), "a chart of what the run did not record"
    assert opened.execute_script(shown)[2] == "of the server"
    assert plot(opened, "cosines", "plot.data[0].y.join()") != before
    assert plot(opened, "distances", "plot.data[0].name") == "features.0.weight"


def test_light_and_dark(opened: Any) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    assert opened.execute_script(f"return {paper}") == "rgb(255, 255, 255)"
    media = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    wait(opened, f"{paper} === 'rgb(20, 23, 27)'")
    wait(opened, "document.querySelector('figure .plot').layout?.paper_bgcolor === '#14171b'")
    lines = "plot.data.find((one) => one.name === 'fedavg').line.color"
    assert plot(opened, "accuracy", lines) == "#dddddd", "black is not seen on black"
    click(opened, "#theme")
    wait(opened, f"{paper} === 'rgb(255, 255, 255)'")
    wait(opened, "document.querySelector('figure .plot').layout.paper_bgcolor === '#ffffff'")
    opened.refresh()
    assert opened.execute_script(f"return {paper}") == "rgb(255, 255, 255)", "the choice is remembered"


def test_a_phone_need_not_scroll_sideways(opened: Any) -> None:
    emulate(opened, 390)
    opened.refresh()
    draw_all(opened)
    opened.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert opened.execute_script("return innerWidth") == 390
    assert opened.execute_script("return document.documentElement.scrollWidth") == 390
    wide = opened.execute_script("""return [...document.querySelectorAll("figure, fieldset, h2, p, .sheets")]
        .filter((one) => one.getBoundingClientRect().right > 390).length""")
    assert wide == 0


def test_charts_are_saved_as_png_and_svg(opened: Any, tmp_path: Path) -> None:
    draw_all(opened)
    behaviour = {"behavior": "allow", "downloadPath": str(tmp_path)}
    opened.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    for kind in ("accuracy", "split"):
        for ending in ("png", "svg"):
            click(opened, f"#group0 figure[data-chart={kind}] button[data-export={ending}]")
            path = tmp_path / f"fedptr-{kind}-1.{ending}"
            until(path.exists, f"the download of {path.name}")
            if ending == "png":
                with Image.open(path) as image:
                    assert image.size[0] == 2000
            else:
                words = "".join(ElementTree.parse(path).getroot().itertext())
                assert "α = 0.04" in words, "the picture says under which condition"
    assert errors(opened) == []


def test_of_sixty_runs_only_what_is_in_sight_is_drawn_at_first(browser: Any, tmp_path: Path) -> None:
    """So that a large page opens quickly; how quickly depends on the machine."""
    for k in range(60):
        method = ("fedavg", "scaffold", "fedptr", "fedptr-s")[k % 4]
        H = {"H": (5, 20, 50)[k // 20]} if method.startswith("fedptr") else {}
        run = {"rounds": 100, "seed": k}
        made_run(tmp_path / "runs" / str(k), {"run": run, "method": {"name": method, **H}, "output": {"pictures": 20}})
    browser.get(report(tmp_path / "runs", tmp_path / "report.html"))
    wait(browser, "window.report.first")
    drawn, charts = browser.execute_script("return [report.drawn, document.querySelectorAll('figure').length]")
    assert 0 < drawn < charts
    assert draw_all(browser) == charts
    assert errors(browser) == []


def test_names_from_files_stay_text(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a path, a plan, a note, the names of layers and the text of a picture."""
    folder = tmp_path / "runs" / EVIL.replace("/", "∕") / "fedptr"
    link = '<a href="javascript:window.hacked=1">here</a>'
    monkeypatch.setattr("made_runs.LAYERS", [EVIL, "at zero", link, "a &lt;b", *["plain"] * 3])
    plan = {"data": {"name": EVIL}, "model": {"name": f"a:{EVIL}"}, "method": {"name": "fedptr"}}
    made_run(folder, plan)
    made_run(tmp_path / "runs" / "other", {"method": {"name": "fedptr"}, "run": {"on_failure": "drop"}})
    words = PngInfo()
    words.add_text("owner", EVIL)
    Image.new("L", (8, 8)).save(folder / "auxiliary" / "round0050.png", pnginfo=words)
    told = json.loads((folder / "summary.json").read_text())
    told.pop("sha256")
    summary.write_summary(folder, {**told, "device": EVIL, "versions": {EVIL: EVIL}})
    bad = tmp_path / "runs" / "bad<b>"
    made_run(bad, {"method": {"name": "fedavg"}})
    (bad / "plan.toml").write_text(f"[run]\n'{EVIL}' = 1\n")

    browser.get(report(tmp_path / "runs", tmp_path / "report.html"))
    draw_all(browser)
    assert errors(browser) == []
    assert browser.execute_script("return window.hacked") is None
    assert browser.execute_script("return document.querySelectorAll('script').length") == 7
    foreign = "img[src='x'], a[href^='javascript'], svg a, header b, [onerror]"
    assert browser.execute_script(f'return document.querySelectorAll("{foreign}").length') == 0
    text = browser.execute_script("return document.body.textContent")
    assert text.count(EVIL) >= 4
    assert "of " + EVIL in browser.execute_script("return document.querySelector('.owner').textContent")
    legend = browser.execute_script(
        "return [...document.querySelectorAll('figure[data-chart=distances] .legendtext')].map((e) => e.textContent)"
    )
    assert legend[:3] == [EVIL, link, "a &lt;b"]
