"""Tables and the list of runs, as HTML. Whatever comes from a file goes through `escape`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from fedptr.report.find_runs import PLAN, FoundRun
from fedptr.report.group_runs import Group, Series, show_value, to_json
from fedptr.report.means_over_seeds import evaluated_rounds, final_results, headline_of_runs
from fedptr.report.wide_tables import scroll_sideways
from fedptr.runs.same_run import shared_by_seeds
from fedptr.runs.summary import LAST, describe_mean

FACTS = {  # of a summary, with their names on the page
    "data": "data",
    "data_sha256": "data, sha256",
    "split_sha256": "split, sha256",
    "weights_sha256": "weights, sha256",
    "rounds_sha256": "rounds.jsonl, sha256",
    "parameters": "parameters",
    "device": "device",
    "threads": "threads",
    "computed": "computed",
}


def render_table(headings: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """A table that scrolls when it is wide. Cells are HTML; the first `words` columns are text, the others numbers."""
    kinds = ["" if i < words else ' class="number"' for i in range(len(headings))]
    head = "".join(
        f'<th scope="col"{kind}>{escape(heading)}</th>' for heading, kind in zip(headings, kinds, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{cell}</td>' for cell, kind in zip(row, kinds, strict=True))}</tr>" for row in rows
    )
    return scroll_sideways(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")


def render_final_table(group: Group) -> str:
    results = [(series, final_results(series.runs)) for series in group.series if has_accuracy(series)]
    headline = headline_of_runs(run for series, _ in results for run in series.runs)
    complete = [result["accuracy"] for series, result in results if not series.unfinished]
    rows = []
    for series, result in results:
        half = "" if result["half"] is None else f" ± {headline.number(result['half'])}"
        accuracy = f"{headline.number(result['accuracy'])}{half}"
        if not series.unfinished and result["accuracy"] >= max(complete):
            accuracy = f"<strong>{accuracy}</strong>"
        rounds = result["rounds"]
        rows.append([
            escape(series.label), accuracy, str(result["seeds"]), headline.number(result["best"]),
            format_significant(result["seconds"]), format_significant(result["seconds"] / rounds),
            format_significant(result["mb"]), format_significant(result["mb"] / rounds),
        ])  # fmt: skip
    averaged = describe_mean([result["averaged"] for _, result in results] or [LAST])
    unit = headline.unit
    headings = ["method", f"{headline.words}{unit}, {averaged}", "seeds", f"best round{unit}"]
    headings += ["seconds", "seconds a round", "MB", "MB a round"]
    return render_table(headings, rows)


def has_accuracy(series: Series) -> bool:
    """False if a run was stopped before its first evaluation."""
    return all(evaluated_rounds(run) for run in series.runs)


def format_significant(value: float) -> str:
    """Three significant digits, or all digits before the point.

    >>> format_significant(0.01234), format_significant(12.34), format_significant(123456.7)
    ('0.0123', '12.3', '123,457')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def render_differences(groups: Sequence[Group]) -> str:
    """One row for each series, with the settings in which plans differ; folded up, and nothing if none does."""
    plans = [(series, shared_by_seeds(series.runs[0].plan)) for group in groups for series in group.series]
    names: list[str] = []
    for name in dict.fromkeys(name for _, plan in plans for name in plan):
        values = {to_json(plan[name]) for _, plan in plans if name in plan}
        if len(values) > 1:
            names.append(name)
    if not names:
        return ""
    rows = []
    for series, plan in plans:
        cells = [escape(show_value(plan[name])) if name in plan else "–" for name in names]
        rows.append([escape(series.label), escape(list_seeds(series)), *cells])
    headings = ["series", "seeds", *names]
    table = render_table(headings, rows, words=len(headings))
    return f"<details><summary>Settings in which the runs differ</summary>{table}</details>"


def render_settings(group: Group) -> str:
    """The settings that all runs of a group share, folded up."""
    lines = "".join(
        f"<dt><code>{escape(name)}</code></dt><dd>{escape(show_value(value)) or '–'}</dd>"
        for name, value in group.settings.items()
    )
    return f'<details class="settings"><summary>Settings that all these runs share</summary><dl>{lines}</dl></details>'


def list_seeds(series: Series) -> str:
    return ", ".join(str(run.plan.run.seed) for run in series.runs)


def render_run(run: FoundRun, label: str, note: str) -> str:
    """A run's state, seeds, checksums, versions and plan, folded up."""
    facts = [("state", run.state), ("seeds", describe_seeds(run))]
    if run.summary is not None:
        facts += [(words, show_value(run.summary[name])) for name, words in FACTS.items() if name in run.summary]
        facts += [("versions", describe_versions(run.summary.get("versions")))]
    lines = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    command = escape(f"fedptr run {shlex.quote(str(run.folder / PLAN))}")
    seed = "" if run.summary is None else f", seed {run.plan.run.seed}"  # an unfinished run's label has it
    heading = escape(label) + seed + (f" <em>{escape(note)}</em>" if note else "")
    return (
        f'<details class="run"><summary>{heading} <code>{escape(str(run.folder))}</code></summary>'
        f"<dl>{lines}<dt>to repeat it</dt><dd><code>{command}</code></dd></dl>"
        f'<pre tabindex="0">{escape(run.text)}</pre></details>'
    )


def describe_seeds(run: FoundRun) -> str:
    return "run {}, split {}, subset {}".format(*run.seeds)


def describe_versions(found: Any) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items()) if isinstance(found, dict) else "unknown"
