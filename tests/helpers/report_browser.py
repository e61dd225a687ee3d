"""A report page in Chromium: opening, looking and clicking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wait_until import until

from fedptr.cli.main import main

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
EVIL = "<img src=x onerror=window.hacked=1></script><script>window.hacked=1</script>"


def report(folder: Path, out: Path) -> str:
    assert main(["report", str(folder), "-o", str(out)]) == 0
    return out.as_uri()


def emulate(browser: Any, width: int | None) -> None:
    """A phone of this width, or the window itself again."""
    if width is None:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        return
    size = {"width": width, "height": 844, "deviceScaleFactor": 3, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def wait(browser: Any, condition: str) -> Any:
    return until(lambda: browser.execute_script(f"return {condition}"), condition)


def draw_all(browser: Any) -> int:
    """Scrolls to every chart, and opens what it is folded into; how many there are."""
    count: int = browser.execute_script("return document.querySelectorAll('figure').length")
    for i in range(count):
        browser.execute_script(f"""const figure = document.querySelectorAll('figure')[{i}];
            figure.closest('details')?.setAttribute('open', '');
            figure.scrollIntoView()""")
        wait(browser, f"document.querySelectorAll('figure')[{i}].dataset.drawn")
    return count


def errors(browser: Any) -> list[str]:
    said = [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    return said + browser.execute_script("return window.report.errors")


def plot(browser: Any, kind: str, expression: str, group: int = 0) -> Any:
    """Of one chart's Plotly figure."""
    where = f"document.querySelector('#group{group} figure[data-chart={kind}] .plot')"
    return browser.execute_script(f"const plot = {where}; return {expression}")


def click(browser: Any, what: str) -> None:
    browser.execute_script(f"document.querySelector({json.dumps(what)}).click()")
