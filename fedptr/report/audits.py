"""The privacy audits of a group's runs: tables, ROC curves, what auxiliary sets give away, and the closest pairs.

audit.json may have been written by anybody: what is not as `fedptr audit` writes it is left out, and that is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from fedptr.audit import result, table
from fedptr.audit.read_audit import STARTS, Audit, parts
from fedptr.errors import UserError
from fedptr.report import tables
from fedptr.report.fedptr_inside import embedded
from fedptr.report.find_runs import Found
from fedptr.report.group import Group
from fedptr.runs.folder import AUDIT


def audits(one: Group) -> tuple[list[Audit], list[str]]:
    """Every audited run, and why others cannot be shown; pictures of the first run of a series only."""
    found, problems = [], []
    for series in one.series:
        several = len(series.runs) > 1
        for k, run in enumerate(series.runs):
            if not (run.files / AUDIT / result.NAME).is_file():
                continue
            try:
                about = parts(result.read(run.files / AUDIT))
            except UserError as error:
                problems.append(str(error).replace(str(run.files), str(run.folder)))
                continue
            label = f"{series.label}, seed {run.plan.run.seed}" if several else series.label
            label += ", trained again on half of the examples" if about["target"] == "half" else ""
            found.append({**about, "label": label, "pictures": pictures(run, about) if k == 0 else []})
    return found, problems


def pictures(run: Found, about: Audit) -> list[dict[str, Any]]:
    starts = about["auxiliary"]["series"] if about["auxiliary"] else ()
    found = [(init, embedded(run.files / AUDIT / f"pairs-{init}.png")) for init in starts]
    return [{"init": init, **picture} for init, picture in found if picture]


def drawn(found: Sequence[Audit]) -> list[Audit]:
    """What the charts need."""
    return [
        {
            "label": one["label"],
            "curves": [{"name": name, **numbers["roc"]} for name, numbers in one["attacks"].items()],
            "series": [line for init, entries in series_of(one).items() for line in lines(init, entries)],
        }
        for one in found
    ]


def series_of(one: Audit) -> dict[str, list[Audit]]:
    return one["auxiliary"]["series"] if one["auxiliary"] else {}


def lines(init: str, entries: list[Audit]) -> list[Audit]:
    rounds = [entry["round"] for entry in entries]
    aucs = {
        f"AUC of {words}": [entry[name]["auc"] if entry[name] else None for entry in entries]
        for name, words in (("members", "members"), ("starts", "the samples it began as"))
    }
    values = {"closer to own samples": [entry["closer"] for entry in entries], **aucs}
    return [{"init": init, "name": f"{init}: {name}", "x": rounds, "y": y} for name, y in values.items()]


def part(found: Sequence[Audit], problems: Sequence[str], charts: str) -> str:
    """The section of a group; `charts` are the places for its ROC curves and the like."""
    if not found and not problems:
        return ""
    notices = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
    notice = f'<ul class="notice">{notices}</ul>' if problems else ""
    if not found:
        return f"<h3>Privacy audit</h3>{notice}"
    rows = [[escape(one["label"]), *map(escape, row)] for one in found for row in table.rows(one)]
    words = (
        "Whether an example was trained on, told from the final global model: 50 % is chance. Accuracy is balanced, "
        "its threshold chosen on one half of the examples and scored on the other; the oracle’s in hindsight. "
        "Intervals are over examples (bootstrap)."
    )
    numbers = tables.table(["run", "attack", *table.HEADINGS], rows, words=2) + f'<p class="small">{words}</p>'
    return "".join([f"<h3>Privacy audit</h3>{notice}", numbers if rows else "", charts, *map(folded, found)])


def folded(one: Audit) -> str:
    """By client, and the auxiliary sets of a run."""
    parts = []
    if one["attacks"]:
        aucs = tables.table(["client", "members", *(f"AUC, {name}" for name in one["attacks"])],
                            [list(map(escape, row)) for row in table.client_rows(one)])  # fmt: skip
        parts.append(f"<details><summary>By client: {escape(one['label'])}</summary>{aucs}</details>")
    if one["auxiliary"]:
        rows = [list(map(escape, row)) for row in table.auxiliary_rows(one["auxiliary"])]
        images = "".join(
            f'<p class="small">Closest pairs of sets that start from {STARTS[picture["init"]]}: auxiliary images, '
            "below them the nearest sample of their owner, and the nearest held-out one of the class.</p>"
            f'<img class="pairs" alt="closest pairs, from {STARTS[picture["init"]]}" src="{escape(picture["src"])}">'
            for picture in one["pictures"]
        )
        parts.append(
            f"<details open><summary>Auxiliary sets: {escape(one['label'])}</summary>"
            f"<p><strong>{escape(one['auxiliary']['note'])}</strong></p>{tables.table(table.AUXILIARY, rows)}"
            f'<p class="small">{escape(table.EXPLAINED)}</p>{images}'
            "</details>"
        )
    return "".join(parts)
