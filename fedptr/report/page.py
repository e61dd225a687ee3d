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
from fedptr.messages import count_noun
from fedptr.report import audit_section, client_data, client_section, html_tables, recipe_section
from fedptr.report import means_over_seeds as figures
from fedptr.report.class_data import FEW_CLASSES, collect_classes
from fedptr.report.fedptr_data import collect_diagnostics, embed_sheets
from fedptr.report.find_runs import FoundRun
from fedptr.report.group_runs import Group, Series, group_runs, to_json
from fedptr.report.recipe_section import Table
from fedptr.report.relationship_data import collect_relationships
from fedptr.report.series_styles import choose_styles
from fedptr.report.split_data import collect_splits, load_class_names

BUDGET = 15_000_000  # characters of learned images on a page
ROWS = 10  # classes on a sheet
FEW = 3  # notices that are not folded up
INTERVAL = (
    "Numbers and curves are means over seeds. Everywhere, ± and the bands and bars of charts are a 95 % confidence "
    "interval of the mean (Student’s t), unless a chart says otherwise. Bands end at 0 and 100 %, as accuracy does. "
    "Where there is no ±, there is one seed."
)
EAGER = "//# allFunctionsCalledOnLoad\n"  # Chromium then compiles all functions at once, which is a little faster
OF_CLIENTS = {"mean": "weighted mean", "p10": "10 % quantile", "worst": "worst"}
ROUNDS, COSTS, PRIVATE = {"rounds": "rounds"}, {"seconds": "seconds", "mb": "MB sent"}, {"epsilon": "ε spent"}


def build_page(runs: Sequence[FoundRun], problems: Sequence[str], reproductions: Sequence[Table] = ()) -> str:
    """The whole page; the same runs give the same text. The tables of `fedptr reproduce` come first."""
    groups = group_runs(runs)
    data = [group_data(one, look) for look in [choose_styles(groups)] for one in groups]
    limit_sheets(data, BUDGET)
    sections = [
        (render_group_clients(i, one, about), render_group_audits(one, about))
        for i, (one, about) in enumerate(zip(groups, data, strict=True))
    ]
    scripts = {name: read_asset(f"{name}.js") for name in ("theme", "charts", "client_charts", "class_charts", "page")}
    from plotly.offline import get_plotlyjs

    scripts["plotly"] = EAGER + get_plotlyjs()
    body = "".join([
        render_header(runs, groups, problems, has_intervals(groups, reproductions)),
        *map(recipe_section.render_recipe, reproductions),
        *(render_group(i, *parts) for i, parts in enumerate(zip(groups, data, sections, strict=True))),
        render_provenance(groups),
        f'<script type="application/json" id="data">{embed_json(data)}</script>',
        *(script_element(scripts[name]) for name in ("plotly", "charts", "client_charts", "class_charts", "page")),
    ])  # fmt: skip
    text = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{content_policy(scripts.values())}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>fedptr report</title><style>{read_asset('page.css')}</style>"
        f"{script_element(scripts['theme'])}</head>\n"
        f"<body>{body}</body></html>\n"
    )
    return text.encode("utf-8", "replace").decode("utf-8")  # a path may hold bytes that are not UTF-8


def read_asset(name: str) -> str:
    return (files("fedptr.report") / "assets" / name).read_text(encoding="utf-8")


def script_element(text: str) -> str:
    return f"<script>{text}</script>\n"


def content_policy(scripts: Any) -> str:
    """Only the page's own scripts run, and nothing is loaded from anywhere."""
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"


def embed_json(data: Any) -> str:
    """JSON that cannot close the script element around it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def group_data(one: Group, look: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The data of a group's charts."""
    found, problems = collect_splits(one)
    classes, damaged = collect_classes(shown_series(one))
    return {
        "title": f"{one.title}. {one.about}",
        "score": describe_headline(one),
        "series": [series_data(series, look[series.key]) for series in shown_series(one)],
        "clients": None,
        "relationships": collect_relationships(one),
        "classes": classes,
        "damaged_classes": damaged,
        "splits": found,
        "problems": problems,
        "views": collect_views(one),
        "audits": [],
    }


def describe_headline(one: Group) -> dict[str, Any] | None:
    """How charts write the score of a task without classes; None for accuracy."""
    headline = figures.headline_of_runs(one.runs)
    loss = {"r2": "squared error of standardised labels", "f1": "binary cross-entropy"}
    return None if headline.percent else {"words": headline.words, "loss": loss[headline.key]}


def shown_series(one: Group) -> list[Series]:
    return [series for series in one.series if html_tables.has_accuracy(series)]


def series_data(series: Series, look: dict[str, Any]) -> dict[str, Any]:
    style = {**look, "dash": "1px,4px"} if series.unfinished else look
    return {
        "label": series.label,
        "style": style,
        "curves": figures.mean_curves(series.runs),
        "final": figures.final_results(series.runs),
        "phases": figures.seconds_by_phase(series.runs),
    }


def collect_views(one: Group) -> list[dict[str, Any]]:
    """What FedPTR did inside, for every run that recorded it; pictures only of the first run of a series."""
    found = []
    names = layer_names(one)
    for series in one.series:
        several = len(series.runs) > 1
        for k, run in enumerate(series.runs):
            about = collect_diagnostics(run, names.get(model_key(run)))
            pictures = embed_sheets(run) if k == 0 else []
            if about is None and not pictures:
                continue
            label = f"{series.label}, seed {run.plan.run.seed}" if several else series.label
            classes = load_class_names(run.plan.data)[:ROWS] if pictures else []
            found.append({"label": label, **(about or {"rounds": []}), "sheets": pictures, "classes": classes})
    return found


def layer_names(one: Group) -> dict[str, list[str]]:
    """By model. Only the summary of a finished run has them; unfinished runs of the same model use them too."""
    known = {model_key(run): run.summary.get("layers") for run in one.runs if run.summary}
    return {model: names for model, names in known.items() if isinstance(names, list)}


def model_key(run: FoundRun) -> str:
    tables_ = run.plan.tables()
    return to_json([tables_["model"], tables_["data"]])


def limit_sheets(data: Sequence[dict[str, Any]], budget: int) -> None:
    """Leaves out pictures beyond `budget` characters."""
    for about in (about for one in data for about in one["views"]):
        size = sum(len(sheet["src"]) for sheet in about["sheets"])
        if size > budget:
            about["sheets"], about["left_out"] = [], True
        else:
            budget -= size


def render_header(runs: Sequence[FoundRun], groups: Sequence[Group], problems: Sequence[str], several: bool) -> str:
    unfinished = sum(run.summary is None for run in runs)
    words = [count_noun(len(runs), "run"), count_noun(len({run.plan.method.name for run in runs}), "method")]
    words += [count_noun(len(groups), "experiment")] + ([f"{unfinished} unfinished"] if unfinished else [])
    links = "".join(f'<li><a href="#group{i}">{escape(one.title)}</a></li>' for i, one in enumerate(groups))
    return (
        '<header><div><h1>fedptr report</h1><button id="theme" type="button">dark</button></div>'
        f"<p>{' · '.join(words)} · made by fedptr {escape(fedptr.__version__)}</p>"
        + (f'<p class="interval">{INTERVAL}</p>' if several else "")
        + fold_notices(problems, "runs are left out")
        + (f"<nav><ol>{links}</ol></nav>" if len(groups) > 1 else "")
        + "</header>"
    )


def has_intervals(groups: Sequence[Group], reproductions: Sequence[Table]) -> bool:
    """Whether there is a ± on the page."""
    cells = (cell for table in reproductions for cell in table["cells"])
    return any(len(series.runs) > 1 for one in groups for series in one.series) or any(
        len(cell["accuracies"]) > 1 for cell in cells
    )


def fold_notices(problems: Sequence[str], words: str) -> str:
    """What is wrong with some files: a few lines, or folded up where there are many."""
    if not problems:
        return ""
    notices = f'<ul class="notice">{"".join(f"<li>{escape(problem)}</li>" for problem in problems)}</ul>'
    if len(problems) <= FEW:
        return notices
    return f'<details class="problems"><summary>{len(problems)} {words}: see why</summary>{notices}</details>'


def render_group(i: int, one: Group, about: dict[str, Any], sections: tuple[str, str]) -> str:
    """A group: its table, its switches, and empty figures that the scripts fill."""
    parts = [
        f'<section id="group{i}" data-group="{i}"><h2>{escape(one.title)}</h2><p class="about">{escape(one.about)}</p>',
        html_tables.render_settings(one),
    ]
    if about["series"]:
        parts += render_results(i, one, about["series"])
    clients, audits = sections
    parts += [clients, render_relationships(about), render_classes(about), render_splits(about), render_views(about)]
    return "".join([*parts, audits, "</section>"])


def render_results(i: int, one: Group, series: Sequence[dict[str, Any]]) -> list[str]:
    """The table and the charts of accuracy and cost; a chart of a single point is left out."""
    headline = figures.headline_of_runs(one.runs)
    score = "Final accuracy" if headline.percent else headline.words
    private = any(each["final"]["epsilon"] is not None for each in series)
    costs = COSTS | (PRIVATE if private else {})
    parts = [
        html_tables.render_final_table(one),
        f'<p class="small">{score} is the mean of the last five evaluated rounds; the highest of the finished '
        "runs is bold. Seconds are of computation, all clients one after another; MB are up and down together, over "
        "all clients.</p>",
    ]
    if any(len(each["curves"]["rounds"]) > 1 for each in series):
        switch = render_switch(f"x{i}", "x", "horizontal axis", ROUNDS | costs)
        parts += [render_legend(series), switch, render_charts("accuracy", "loss")]
    else:
        parts += ['<p class="missing">Only one round was evaluated, so there are no curves yet.</p>']
        parts += [render_legend(series)] if len(series) > 1 else []
    if len(series) > 1:
        return [*parts, render_switch(f"cost{i}", "cost", "cost in", costs), render_charts("cost", "phases")]
    return [*parts, render_charts("phases")]


def render_legend(series: Sequence[dict[str, Any]]) -> str:
    """Checkboxes that show and hide a series in all charts of the group."""
    if len(series) < 2:
        return ""
    boxes = "".join(
        f'<label><input type="checkbox" data-series="{j}" checked><svg class="sample" data-series="{j}" width="34" '
        f'height="14" aria-hidden="true"></svg><span>{escape(one["label"])}</span></label>'
        for j, one in enumerate(series)
    )
    several = '<button type="button" data-all="yes">all</button><button type="button" data-all="">none</button>'
    return (
        f'<fieldset class="legend"><legend>methods shown</legend>{boxes}{several if len(series) > 2 else ""}</fieldset>'
    )


def render_switch(name: str, what: str, words: str, options: dict[str, str]) -> str:
    boxes = "".join(
        f'<label><input type="radio" name="{name}" data-switch="{what}" value="{value}"'
        f"{' checked' if k == 0 else ''}><span>{escape(text)}</span></label>"
        for k, (value, text) in enumerate(options.items())
    )
    return f'<fieldset class="switch"><legend>{escape(words)}</legend>{boxes}</fieldset>'


def render_charts(*kinds: str, first: str = "") -> str:
    """Empty figures for the charts, side by side where there is room, after `first`."""
    places = "".join(
        f'<figure data-chart="{kind}"><div class="plot"></div><figcaption><span class="words"></span>'
        '<button type="button" data-export="png">PNG</button><button type="button" data-export="svg">SVG</button>'
        "</figcaption></figure>"
        for kind in kinds
    )
    return f'<div class="charts">{first}{places}</div>'


def render_menu(what: str, labels: Sequence[str], chosen: int = 0) -> str:
    """A menu, hidden when there is nothing to choose."""
    options = "".join(
        f'<option value="{k}"{" selected" if k == chosen else ""}>{escape(label)}</option>'
        for k, label in enumerate(labels)
    )
    hidden = " hidden" if len(labels) < 2 else ""
    return f'<label class="choice"{hidden}>{what} <select data-choice="{what}">{options}</select></label>'


def render_group_clients(i: int, one: Group, about: dict[str, Any]) -> str:
    """The section about the group's clients; adds their numbers to its data."""
    found = client_data.collect_scores(shown_series(one))
    about["clients"] = client_data.chart_data(found)
    known = [scores for scores in found if scores]
    if not known:
        return client_section.render_loss_table(shown_series(one))
    last = len(about["clients"]["rounds"])
    dots = any(len(scores.runs[0].ids) > 1 for scores in known)
    curves = any(len(each["curves"]["rounds"]) > 1 for each in about["clients"]["series"] if each)
    slider = (
        f'<label class="slider"><span>round</span> <output></output> <input type="range" min="0" max="{last}" step="1" '
        f'value="{last}" data-slider="client" aria-label="round of the dots"></label>'
    )
    personalised = next((k for k, scores in enumerate(known) if scores.used == "personal"), 0)
    return "".join([
        "<h3>How well it works for every client</h3>",
        client_section.render_spread_table(known),
        f'<p class="small">{escape(client_section.explain_scores(known))}</p>',
        client_section.render_client_table(known),
        slider + render_charts("clients") if dots else "",
        render_client_curves(i, [scores.label for scores in known], personalised) if curves else "",
    ])  # fmt: skip


def render_client_curves(i: int, labels: Sequence[str], chosen: int) -> str:
    return (
        render_switch(f"score{i}", "score", "of all clients the", OF_CLIENTS)
        + render_menu("method", labels, chosen)
        + render_charts("clientcurves", "clientrounds")
    )


def render_relationships(about: dict[str, Any]) -> str:
    if not about["relationships"]:
        return ""
    menu = render_menu("relationship", [one["label"] for one in about["relationships"]])
    return f"<h3>Which clients are alike</h3>{menu}{render_charts('relationship')}"


def render_classes(about: dict[str, Any]) -> str:
    """The accuracy of every class, and folded up what each run's model takes the classes for."""
    notice, found = fold_notices(about["damaged_classes"], "runs have no sound scores by class"), about["classes"]
    charts = ""
    if found and found["confusions"]:
        menu = render_menu("confusion", [one["label"] for one in found["confusions"]])
        folded = "<summary>Which classes are taken for which: confusion matrices</summary>"
        charts = f"{render_charts('classes')}<details>{folded}{menu}{render_charts('confusion')}</details>"
    elif found:
        words = f"Confusion matrices of more than {FEW_CLASSES} classes are left out, as they cannot be read; the file "
        charts = f'{render_charts("classes")}<p class="small">{words}class_scores.json of every run has them.</p>'
    return f"<h3>Which classes are learned</h3>{notice}{charts}" if notice or charts else ""


def render_splits(about: dict[str, Any]) -> str:
    notice = fold_notices(about["problems"], "splits cannot be shown")
    labels = [f"{one['origin']} ({one['sha256'][:12]})" for one in about["splits"]]
    charts = render_menu("split", labels) + render_charts("split") if labels else ""
    return f"<h3>Which client has which classes</h3>{notice}{charts}" if notice or charts else ""


def render_views(about: dict[str, Any]) -> str:
    views = about["views"]
    if not views:
        return ""
    sent = [any(sheet["rows"] for sheet in view["sheets"]) for view in views]
    title = "What FedPTR did inside" if not all(sent) else "What clients sent"
    title += ", and what clients sent" if any(sent) and not all(sent) else ""
    pictures = (
        '<div class="sheets" hidden><p><strong></strong> <span class="owner"></span></p>'
        '<div class="sheet"><ol class="classes"></ol><img alt=""></div>'
        '<label>round <output></output> <input type="range" min="0" step="1" aria-label="round"></label>'
        '<p class="small kept">One row per class; pixels are clipped to the range of the training images. The '
        "auxiliary set never leaves its owner; in a simulation the pictures are a debugging view.</p>"
        '<p class="small sent">One row per client, with up to ten images of what it sent; pixels are clipped to the '
        "range of the training images. The server has all of these, and they may show clients’ data.</p></div>"
    )
    return (
        f"<h3>{title}</h3>{render_menu('run', [one['label'] for one in views])}"
        '<p class="left-out small" hidden>The learned images of this run are left out, as the page would become too '
        "large; make a report of fewer runs.</p>"
        f"{render_charts('matching', 'beta', 'cosines', 'reach', 'distances', first=pictures)}"
    )


def render_group_audits(one: Group, about: dict[str, Any]) -> str:
    """The section of the group's audits; adds their curves to its data."""
    found, problems = audit_section.collect_audits(one)
    about["audits"] = audit_section.chart_data(found)
    kinds = {"roc": "curves", "auxiliary": "series"}
    shown = [kind for kind, name in kinds.items() if any(audit[name] for audit in about["audits"])]
    menu = render_menu("audit", [audit["label"] for audit in about["audits"]])
    return audit_section.render_audits(found, problems, menu + render_charts(*shown) if shown else "")


def render_provenance(groups: Sequence[Group]) -> str:
    """Where all this comes from: settings and runs, folded up."""
    parts = [
        "<section><h2>Settings and runs</h2>",
        html_tables.render_differences(groups),
        "<h3>Runs</h3>",
    ]
    for one in groups:
        found = [(series.label, run, "") for series in one.series for run in series.runs]
        found += [(series.label, run, "repeats a seed, not counted") for series in one.series for run in series.repeats]
        rows = "".join(html_tables.render_run(run, label, note) for label, run, note in found)
        words = f"{escape(one.title)}: {count_noun(len(found), 'run')}"
        parts.append(f"<details><summary>{words}</summary>{rows}</details>" if len(groups) > 1 else rows)
    return "".join([*parts, "</section>"])
