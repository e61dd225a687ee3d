"""The pictures of what clients sent on the report page, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_runs import made_run
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from report_browser import EVIL, draw_all, errors, report

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("browser")]
SHOWN = """const place = document.querySelector(".sheets"), seen = (one) => one.offsetParent !== null;
    return { title: place.querySelector("strong").textContent, owner: place.querySelector(".owner").textContent,
      rows: [...place.querySelectorAll(".classes li")].map((one) => one.textContent),
      words: [...place.querySelectorAll("p.small")].filter(seen).map((one) => one.textContent).join(" "),
      alt: place.querySelector("img").alt, width: place.querySelector("img").naturalWidth,
      slider: seen(place.querySelector("input")) }"""


def choose(browser: Any, run: int) -> dict[str, Any]:
    """What is shown of a run's pictures."""
    browser.execute_script(f"""const menu = document.querySelector("select[data-choice=run]");
        if (menu) {{ menu.value = {run}; menu.dispatchEvent(new Event("change", {{ bubbles: true }})); }}""")
    browser.execute_script("document.querySelector('.sheets').scrollIntoView()")
    shown: dict[str, Any] = browser.execute_script(SHOWN)
    return shown


def test_a_row_for_every_client(browser: Any, tmp_path: Path) -> None:
    made_run(tmp_path / "runs" / "feddm", {"method": {"name": "feddm"}, "output": {"pictures": 50}})
    browser.get(report(tmp_path / "runs", tmp_path / "report.html"))
    draw_all(browser)
    assert errors(browser) == []
    shown = choose(browser, 0)
    assert shown["title"] == "Images that clients sent"
    assert shown["rows"] == ["client 0", "client 3", "client 4"]
    assert "One row per client" in shown["words"]
    assert "The server has all of these" in shown["words"]
    assert "never leaves" not in shown["words"]
    assert (shown["owner"], shown["slider"]) == ("", False), "of one round"
    assert shown["alt"] == "images that clients sent after round 50"
    assert shown["width"] == 10 * 9 - 1
    assert "What clients sent" in browser.execute_script("return document.body.textContent")
    assert "What FedPTR did inside" not in browser.execute_script("return document.body.textContent")


def test_beside_a_run_of_fedptr(browser: Any, tmp_path: Path) -> None:
    for name in ("feddm", "fedptr"):
        made_run(tmp_path / "runs" / name, {"method": {"name": name}, "output": {"pictures": 10}})
    browser.get(report(tmp_path / "runs", tmp_path / "report.html"))
    draw_all(browser)
    assert "What FedPTR did inside, and what clients sent" in browser.execute_script("return document.body.textContent")
    labels = browser.execute_script(
        "return [...document.querySelector('select[data-choice=run]').options].map((one) => one.textContent)"
    )
    shown = {label: choose(browser, k) for k, label in enumerate(labels)}
    assert shown["feddm"]["rows"] == ["client 0", "client 3", "client 4"]
    assert shown["fedptr"]["rows"] == [str(k) for k in range(10)]
    assert (shown["fedptr"]["title"], shown["fedptr"]["owner"]) == ("Auxiliary images", "of client 2")
    assert "never leaves its owner" in shown["fedptr"]["words"]
    assert shown["fedptr"]["slider"]
    assert errors(browser) == []


def test_rows_from_a_picture_stay_text(browser: Any, tmp_path: Path) -> None:
    made_run(tmp_path / "runs" / "feddm", {"method": {"name": "feddm"}, "output": {"pictures": 50}})
    words = PngInfo()
    words.add_text("rows", "\n".join([EVIL, *"abcdefghijklmno"]))
    Image.new("L", (8, 8)).save(tmp_path / "runs" / "feddm" / "auxiliary" / "round0050.png", pnginfo=words)
    browser.get(report(tmp_path / "runs", tmp_path / "report.html"))
    draw_all(browser)
    assert choose(browser, 0)["rows"] == [EVIL, *"abcdefghi"], "no more than a picture has"
    assert browser.execute_script("return window.hacked") is None
    assert errors(browser) == []
