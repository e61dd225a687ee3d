"""A recipe's table on the page: our numbers, the paper's beside them, and a verdict on the gaps."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from fedptr.errors import UserError
from fedptr.regular_files import read_bytes
from fedptr.report.wide_tables import scroll_sideways
from fedptr.reproduce.recipe import is_comparable
from fedptr.reproduce.verdict import MEANING
from fedptr.reproduce.wide_table import transpose_if_wide
from fedptr.stats import is_usable_number

Table = dict[str, Any]  # reproduce.json, and the folders of its runs

NAME = "reproduce.json"
LARGEST = 20_000_000  # bytes


def load_tables(folders: Iterable[Path]) -> list[Table]:
    """The tables of the folders that have one."""
    return [load_table(folder) for folder in folders if (folder / NAME).is_file()]


def load_table(folder: Path) -> Table:
    """What `fedptr reproduce` wrote about a recipe."""
    path = folder / NAME
    try:
        data = json.loads(read_bytes(path, LARGEST))
        cells, shown = data["cells"], [data["title"], data["scale"], data["reference"]]
        shown += [cell[name] for cell in cells for name in ("row", "column")]
        folders = [name for cell in cells for name in cell["folders"]]
        shown += [cell.get("verdict", "") for cell in cells]
        tables = [data["reduced"], *(cell["accuracies"] for cell in cells)]
        kinds = [(str, [*shown, *folders]), (dict, tables)]
        if not all(isinstance(value, kind) for kind, values in kinds for value in values):
            raise ValueError
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{path} is not what `fedptr reproduce` writes; run its recipe again") from None
    return {**data, "runs": [place for name in folders if (place := folder_below(folder.parent, name))]}


def folder_below(base: Path, name: str) -> Path | None:
    """The folder of this name, unless it lies outside of `base`."""
    place = base / name
    return place if place.resolve().is_relative_to(base.resolve()) else None


def render_recipe(data: Table) -> str:
    rows, columns = list_labels(data, "row"), list_labels(data, "column")
    cells = {(cell["row"], cell["column"]): cell for cell in data["cells"]}
    seeds = max((len(cell["accuracies"]) for cell in data["cells"]), default=0)
    grid = [["", *map(escape, columns)]]
    grid += [[escape(row), *(render_cell(cells.get((row, name)), data) for name in columns)] for row in rows]
    names, *lines = transpose_if_wide(grid, len(columns))
    head = "".join(f'<th class="number">{name}</th>' for name in names[1:])
    body = "".join(
        f"<tr><th>{name}</th>" + "".join(f'<td class="number">{cell}</td>' for cell in line) + "</tr>"
        for name, *line in lines
    )
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"
    measure = str(data.get("measure", "Accuracy (%), mean of the last five rounds"))
    several = f"mean of {seeds} seeds, or of [n]" if seeds > 1 else "one seed"
    return (
        f'<section class="reproduced"><h2>{escape(data["title"])}</h2>{render_reductions(data)}'
        f"{scroll_sideways(table)}"
        f'<p class="small">{escape(measure)}, {several}; below it the paper’s number, {explain_gaps(data)}</p>'
        "</section>"
    )


def explain_gaps(data: Table) -> str:
    gap = f"our gap to {escape(data['reference'])}"
    if not is_comparable(data["scale"]):
        return f"and {gap}."
    meaning = "; ".join(f"{name}: {words}" for name, words in MEANING.items())
    return f"{gap} with the paper’s in brackets, and a verdict on the gap. {escape(meaning)}."


def list_labels(data: Table, what: str) -> list[str]:
    return list(dict.fromkeys(cell[what] for cell in data["cells"]))


def render_reductions(data: Table) -> str:
    """What the scale reduced, folded up."""
    if not data["reduced"]:
        return '<p class="small">The paper’s size: nothing was reduced.</p>'
    changes = {place: both for place, both in data["reduced"].items() if isinstance(both, dict)}
    words = {
        place: " → ".join(list_values(both, side) for side in ("paper", "here")) for place, both in changes.items()
    }
    items = "".join(f"<li><code>{escape(place)}</code>: {escape(text)}</li>" for place, text in words.items())
    comparable = is_comparable(data["scale"])
    what = "accuracies cannot be" if comparable else "neither accuracies nor gaps can be"
    more = ", but gaps and order can" if comparable else ""
    return (
        f"<details><summary>Scale <code>{escape(data['scale'])}</code>: reduced, so {what} compared with the "
        f"paper’s{more}</summary><ul class='small'>{items}</ul></details>"
    )


def list_values(both: dict[str, Any], what: str) -> str:
    values = both.get(what)
    return ", ".join("all" if value == 0 else str(value) for value in values) if isinstance(values, list) else "?"


def render_cell(cell: dict[str, Any] | None, data: Table) -> str:
    """Our number, the paper's, the gap and the verdict, one per line."""
    if cell is None or not is_usable_number(cell.get("mean")):
        return "failed" if cell and cell.get("failures") else "–"
    few = f" [{len(cell['accuracies'])}]" if len(cell["accuracies"]) < len(cell["folders"]) else ""
    lines = [f"<strong>{format_interval(cell, 'mean', 'ci95', '.1f')}</strong>{few}"]
    if is_usable_number(cell.get("paper")):
        lines.append(f'<span class="paper">paper {cell["paper"]:.1f}</span>')
    if cell["column"] != data["reference"] and is_usable_number(cell.get("gap")):
        theirs = f" ({cell['paper_gap']:+z.1f})" if is_usable_number(cell.get("paper_gap")) else ""
        against = str(cell.get("against", data["reference"]))
        other = f" to {escape(against)}" if against != data["reference"] else ""
        lines.append(f"<span>{format_interval(cell, 'gap', 'gap_ci95', '+z.1f')}{theirs}{other}</span>")
    verdict = cell.get("verdict")
    if verdict in MEANING:
        lines.append(f'<span class="verdict {verdict.split()[0]}">{escape(verdict)}</span>')
    return "<br>".join(lines)


def format_interval(cell: dict[str, Any], mean: str, half: str, form: str) -> str:
    several = len(cell["accuracies"]) > 1 and is_usable_number(cell.get(half))
    return f"{cell[mean]:{form}}" + (f" ± {cell[half]:.1f}" if several else "")
