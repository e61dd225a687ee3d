"""The privacy audits of a group's runs: tables, ROC curves, what auxiliary sets give away, and the closest pairs.

Anybody may have written audit.json: a file that is not as `fedptr audit` writes it is left out, and the page says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from fedptr.audit import audit_json, audit_table
from fedptr.audit.check_audit import SENT, SETS, Audit, check_audit
from fedptr.errors import UserError
from fedptr.report.fedptr_data import embed_image
from fedptr.report.find_runs import FoundRun
from fedptr.report.group_runs import Group
from fedptr.report.html_tables import render_table
from fedptr.runs.folder import AUDIT

STARTS = {"real": "own samples", "noise": "noise"}
KINDS = {
    "auxiliary": ("Auxiliary sets", audit_table.AUXILIARY, audit_table.auxiliary_rows),
    "sent": ("Sets that clients sent", audit_table.SENT, audit_table.sent_rows),
}


def collect_audits(one: Group) -> tuple[list[Audit], list[str]]:
    """The audits of a group, and why some cannot be shown; pictures only of the first run of a series."""
    found, problems = [], []
    for series in one.series:
        several = len(series.runs) > 1
        for k, run in enumerate(series.runs):
            if not (run.files / AUDIT / audit_json.NAME).is_file():
                continue
            try:
                about = check_audit(audit_json.read_audit(run.files / AUDIT))
            except UserError as error:
                problems.append(str(error).replace(str(run.files), str(run.folder)))
                continue
            label = f"{series.label}, seed {run.plan.run.seed}" if several else series.label
            label += ", trained again on half of the examples" if about["target"] == "half" else ""
            found.append({**about, "label": label, "pictures": embed_pairs(run, about) if k == 0 else []})
    return found, problems


def embed_pairs(run: FoundRun, about: Audit) -> list[dict[str, Any]]:
    starts = [init for name in SETS if about[name] for init in about[name]["series"]]
    found = [(init, embed_image(run.files / AUDIT / f"pairs-{init}.png")) for init in starts]
    return [{"init": init, **picture} for init, picture in found if picture]


def chart_data(found: Sequence[Audit]) -> list[Audit]:
    """The numbers that the charts need."""
    return [
        {
            "label": one["label"],
            "curves": [{"name": name, **numbers["roc"]} for name, numbers in one["attacks"].items()],
            "series": [
                line for init, entries in series_of_sets(one).items() for line in auxiliary_lines(init, entries)
            ],
        }
        for one in found
    ]


def series_of_sets(one: Audit) -> dict[str, list[Audit]]:
    """The rounds of each kind of set; a single round is no curve."""
    found = [item for name in SETS if one[name] for item in one[name]["series"].items()]
    return {init: entries for init, entries in found if init != SENT or len(entries) > 1}


def auxiliary_lines(init: str, entries: list[Audit]) -> list[Audit]:
    rounds = [entry["round"] for entry in entries]
    aucs = {
        f"AUC of {words}": [entry[name]["auc"] if entry[name] else None for entry in entries]
        for name, words in (("members", "members"), ("starts", "the samples it began as"))
        if name == "members" or init != SENT
    }
    values = {"closer to own samples": [entry["closer"] for entry in entries], **aucs}
    return [{"init": init, "name": f"{init}: {name}", "x": rounds, "y": y} for name, y in values.items()]


def render_audits(found: Sequence[Audit], problems: Sequence[str], charts: str) -> str:
    """The section of a group; `charts` is the HTML for its charts, which scripts draw."""
    if not found and not problems:
        return ""
    notices = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
    notice = f'<ul class="notice">{notices}</ul>' if problems else ""
    if not found:
        return f"<h3>Privacy audit</h3>{notice}"
    rows = [[escape(one["label"]), *map(escape, row)] for one in found for row in audit_table.attack_rows(one)]
    words = (
        "Whether an example was trained on, told from the final global model: 50 % is chance. Accuracy is balanced, "
        "its threshold chosen on one half of the examples and scored on the other; the oracle’s in hindsight. "
        "Intervals in brackets are 95 %, over examples (bootstrap)."
    )
    numbers = render_table(["run", "attack", *audit_table.HEADINGS], rows, words=2) + f'<p class="small">{words}</p>'
    details = map(render_audit_details, found)
    return "".join([f"<h3>Privacy audit</h3>{notice}", numbers if rows else "", charts, *details])


def render_audit_details(one: Audit) -> str:
    """A run's results by client, and those of its auxiliary sets."""
    parts = []
    if one["attacks"]:
        aucs = render_table(["client", "members", *(f"AUC, {name}" for name in one["attacks"])],
                            [list(map(escape, row)) for row in audit_table.client_rows(one)])  # fmt: skip
        parts.append(f"<details><summary>By client: {escape(one['label'])}</summary>{aucs}</details>")
    for name, (title, headings, rows_of) in KINDS.items():
        if one[name]:
            rows = [list(map(escape, row)) for row in rows_of(one[name])]
            images = "".join(
                render_pairs(picture) for picture in one["pictures"] if picture["init"] in one[name]["series"]
            )
            parts.append(
                f"<details open><summary>{title}: {escape(one['label'])}</summary>"
                f"<p><strong>{escape(one[name]['note'])}</strong></p>{render_table(headings, rows)}"
                f'<p class="small">{escape(audit_table.EXPLAINED[name])}</p>{images}'
                "</details>"
            )
    return "".join(parts)


def render_pairs(picture: dict[str, Any]) -> str:
    start = STARTS.get(picture["init"])
    whose = f"sets that start from {start}: auxiliary images" if start else "what clients sent: images"
    return (
        f'<p class="small">Closest pairs of {whose}, below them the nearest sample of their owner, and the nearest '
        f'held-out one of the class.</p><img class="pairs" alt="closest pairs, {escape(picture["init"])}" '
        f'src="{escape(picture["src"])}">'
    )
