"""The page: HTML around the data as JSON, with the style, the scripts and Plotly inside. It loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

import fedptr
from fedptr.report import audits, recipes, tables
from fedptr.report import series as figures
from fedptr.report.fedptr_inside import sheets, view
from fedptr.report.find_runs import Found
from fedptr.report.group import Group, Series, group, text_of
from fedptr.report.recipes import Table
from fedptr.report.splits import class_names, splits
from fedptr.report.style import styles

BUDGET = 15_000_000  # characters of auxiliary images on a page
ROWS = 10  # classes on a sheet
EAGER = "//# allFunctionsCalledOnLoad\n"  # tells Chromium to compile all at once, which is a little faster
ROUNDS, COSTS, PRIVATE = {"rounds": "rounds"}, {"seconds": "seconds", "mb": "MB sent"}, {"epsilon": "ε spent"}


def page(runs: Sequence[Found], problems: Sequence[str], reproductions: Sequence[Table] = ()) -> str:
    """The whole file as text; the same runs give the same page. What `fedptr reproduce` found of them comes first."""
    groups = group(runs)
    data = [described(one, look) for look in [styles(groups)] for one in groups]
    spend(data, BUDGET)
    audited = [audit_part(one, about) for one, about in zip(groups, data, strict=True)]
    scripts = {name: asset(f"{name}.js") for name in ("theme", "charts", "page")}
    from plotly.offline import get_plotlyjs

    scripts["plotly"] = EAGER + get_plotlyjs()
    body = "".join([
        header(runs, groups, problems),
        *map(recipes.section, reproductions),
        *(section(i, *parts) for i, parts in enumerate(zip(groups, data, audited, strict=True))),
        provenance(groups),
        f'<script type="application/json" id="data">{embedded(data)}</script>',
        *(script(scripts[name]) for name in ("plotly", "charts", "page")),
    ])  # fmt: skip
    text = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(scripts.values())}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>fedptr report</title><style>{asset('page.css')}</style>{script(scripts['theme'])}</head>\n"
        f"<body>{body}</body></html>\n"
    )
    return text.encode("utf-8", "replace").decode("utf-8")  # a path may hold bytes that are no text


def asset(name: str) -> str:
    return (files("fedptr.report") / "assets" / name).read_text(encoding="utf-8")


def script(text: str) -> str:
    return f"<script>{text}</script>\n"


def policy(scripts: Any) -> str:
    """Only the page's own scripts run, whatever else got in, and nothing is loaded from anywhere."""
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"


def embedded(data: Any) -> str:
    """JSON that cannot end the element it is in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def described(one: Group, look: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A group as the charts need it."""
    found, problems = splits(one)
    return {
        "title": one.title,
        "series": [drawn(series, look[series.key]) for series in one.series if tables.measured(series)],
        "splits": found,
        "problems": problems,
        "views": views(one),
        "audits": [],
    }


def drawn(series: Series, look: dict[str, Any]) -> dict[str, Any]:
    style = {**look, "dash": "1px,4px"} if series.unfinished else look
    return {
        "label": series.label,
        "style": style,
        "curves": figures.curves(series.runs),
        "final": figures.final(series.runs),
        "phases": figures.phases(series.runs),
    }


def views(one: Group) -> list[dict[str, Any]]:
    """FedPTR's view of every run that has one; the pictures of the first run of a series only."""
    found = []
    names = layer_names(one)
    for series in one.series:
        several = len(series.runs) > 1
        for k, run in enumerate(series.runs):
            about = view(run, names.get(model_of(run)))
            pictures = sheets(run) if k == 0 else []
            if about is None and not pictures:
                continue
            label = f"{series.label}, seed {run.plan.run.seed}" if several else series.label
            classes = class_names(run.plan.data)[:ROWS] if pictures else []
            found.append({"label": label, **(about or {"rounds": []}), "sheets": pictures, "classes": classes})
    return found


def layer_names(one: Group) -> dict[str, list[str]]:
    """By model; only a finished run knows them, and serves those that are not."""
    known = {model_of(run): run.summary.get("layers") for run in one.runs if run.summary}
    return {model: names for model, names in known.items() if isinstance(names, list)}


def model_of(run: Found) -> str:
    tables_ = run.plan.tables()
    return text_of([tables_["model"], tables_["data"]])


def spend(data: Sequence[dict[str, Any]], budget: int) -> None:
    """Leaves out pictures once they have become too many for one file."""
    for about in (about for one in data for about in one["views"]):
        size = sum(len(sheet["src"]) for sheet in about["sheets"])
        if size > budget:
            about["sheets"], about["left_out"] = [], True
        else:
            budget -= size


def header(runs: Sequence[Found], groups: Sequence[Group], problems: Sequence[str]) -> str:
    unfinished = sum(run.summary is None for run in runs)
    words = [counted(len(runs), "run"), counted(len({run.plan.method.name for run in runs}), "method")]
    words += [counted(len(groups), "experimental condition")] + ([f"{unfinished} unfinished"] if unfinished else [])
    links = "".join(f'<li><a href="#group{i}">{escape(one.title)}</a></li>' for i, one in enumerate(groups))
    notices = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
    return (
        '<header><div><h1>fedptr report</h1><button id="theme" type="button">dark</button></div>'
        f"<p>{' · '.join(words)} · made by fedptr {escape(fedptr.__version__)}</p>"
        + (f'<ul class="notice">{notices}</ul>' if notices else "")
        + (f"<nav><ol>{links}</ol></nav>" if len(groups) > 1 else "")
        + "</header>"
    )


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def section(i: int, one: Group, about: dict[str, Any], audited: str) -> str:
    """A group: its table, its switches, and places where its charts will be drawn."""
    parts = [f'<section id="group{i}" data-group="{i}"><h2>{escape(one.title)}</h2>']
    if about["series"]:
        private = any(one["final"]["epsilon"] is not None for one in about["series"])
        costs = COSTS | (PRIVATE if private else {})
        parts += [
            tables.final_table(one),
            '<p class="small">Mean over seeds ± 95 % confidence interval (Student’s t) where there are several seeds; '
            "the highest mean of the finished runs is bold. Seconds are of computation, all clients one after another; "
            "MB are up and down together, over all clients.</p>",
            legend(about["series"]),
            switch(f"x{i}", "x", "x axis", ROUNDS | costs),
            charts("accuracy", "loss"),
            switch(f"cost{i}", "cost", "cost", costs),
            charts("cost", "phases"),
        ]
    parts += [split_part(about), view_part(about), audited, "</section>"]
    return "".join(parts)


def legend(series: Sequence[dict[str, Any]]) -> str:
    """Boxes that show and hide a series in all charts of the group; the scripts draw the samples of its line."""
    boxes = "".join(
        f'<label><input type="checkbox" data-series="{j}" checked><svg class="sample" data-series="{j}" width="34" '
        f'height="14" aria-hidden="true"></svg><span>{escape(one["label"])}</span></label>'
        for j, one in enumerate(series)
    )
    several = '<button type="button" data-all="yes">all</button><button type="button" data-all="">none</button>'
    return f'<fieldset class="legend"><legend>shown</legend>{boxes}{several if len(series) > 2 else ""}</fieldset>'


def switch(name: str, what: str, words: str, options: dict[str, str]) -> str:
    boxes = "".join(
        f'<label><input type="radio" name="{name}" data-switch="{what}" value="{value}"'
        f"{' checked' if k == 0 else ''}><span>{escape(text)}</span></label>"
        for k, (value, text) in enumerate(options.items())
    )
    return f'<fieldset class="switch"><legend>{escape(words)}</legend>{boxes}</fieldset>'


def charts(*kinds: str, first: str = "") -> str:
    """Places for charts, side by side where there is room, after something else where there is any."""
    places = "".join(
        f'<figure data-chart="{kind}"><div class="plot"></div><figcaption><span class="words"></span>'
        '<button type="button" data-export="png">PNG</button><button type="button" data-export="svg">SVG</button>'
        "</figcaption></figure>"
        for kind in kinds
    )
    return f'<div class="charts">{first}{places}</div>'


def choice(what: str, labels: Sequence[str]) -> str:
    """A menu, where there is something to choose."""
    options = "".join(f'<option value="{k}">{escape(label)}</option>' for k, label in enumerate(labels))
    hidden = " hidden" if len(labels) < 2 else ""
    return f'<label class="choice"{hidden}>{what} <select data-choice="{what}">{options}</select></label>'


def split_part(about: dict[str, Any]) -> str:
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in about["problems"])
    notice = f'<ul class="notice">{problems}</ul>' if problems else ""
    if not about["splits"]:
        return f"<h3>The split</h3>{notice}"
    labels = [f"{one['origin']} ({one['sha256'][:12]})" for one in about["splits"]]
    return f"<h3>The split</h3>{notice}{choice('split', labels)}{charts('split')}"


def view_part(about: dict[str, Any]) -> str:
    if not about["views"]:
        return ""
    pictures = (
        '<div class="sheets" hidden><p><strong>Auxiliary images</strong> <span class="owner"></span></p>'
        '<div class="sheet"><ol class="classes"></ol><img alt=""></div>'
        '<label>round <output></output> <input type="range" min="0" step="1" aria-label="round"></label>'
        '<p class="small">A class a row; pixels are clipped to the range of the training images. The auxiliary set '
        "never leaves its owner; in a simulation the pictures are a debugging view.</p></div>"
    )
    return (
        f"<h3>Inside FedPTR</h3>{choice('run', [one['label'] for one in about['views']])}"
        '<p class="left-out small" hidden>The auxiliary images of this run are left out, as the page would become too '
        "large; make a report of fewer runs.</p>"
        f"{charts('matching', 'beta', 'cosines', 'reach', 'distances', first=pictures)}"
    )


def audit_part(one: Group, about: dict[str, Any]) -> str:
    """The group's audits, whose curves become a part of its data."""
    found, problems = audits.audits(one)
    about["audits"] = audits.drawn(found)
    kinds = {"roc": "curves", "auxiliary": "series"}
    shown = [kind for kind, name in kinds.items() if any(audit[name] for audit in about["audits"])]
    menu = choice("audit", [audit["label"] for audit in about["audits"]])
    return audits.part(found, problems, menu + charts(*shown) if shown else "")


def provenance(groups: Sequence[Group]) -> str:
    parts = ["<section><h2>Plans and runs</h2><h3>What differs</h3>", tables.differences(groups), "<h3>Runs</h3>"]
    for one in groups:
        parts += [f'<p class="small">{escape(one.title)}</p>'] if len(groups) > 1 else []
        for series in one.series:
            parts += [tables.run_details(run, series.label, "") for run in series.runs]
            again = "repeats a seed, not counted"
            parts += [tables.run_details(run, series.label, again) for run in series.repeats]
    return "".join([*parts, "</section>"])
