"""An outcome as Markdown, LaTeX and CSV, and as a table that fills in while cells run."""

from __future__ import annotations

import csv
import io
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedptr.jobs.run_queue import Board
from fedptr.messages import format_duration
from fedptr.reproduce.outcome import Outcome, Result
from fedptr.reproduce.recipe import Column, Row, common, reduced
from fedptr.reproduce.turned_table import turned, wide
from fedptr.reproduce.verdict import MEANING

NONE = "–"
GAPS = ("gap", "gap_ci95", "paper_gap", "verdict")


def about_scale(outcome: Outcome) -> list[str]:
    """What was reduced, in words that stand above every table."""
    if outcome.scale == "paper":
        return ["The paper's size: nothing was reduced."]
    words = common()["scales"][outcome.scale]["about"]
    lines = [f"Scale `{outcome.scale}`: {words}. Reduced, paper → here:", ""]
    for place, (theirs, ours) in reduced(outcome.recipe, outcome.scale).items():
        lines.append(f"- `{place}`: {listed(theirs)} → {listed(ours)}")
    if outcome.scale != "smoke":
        lines += ["", "So accuracies are not comparable with the paper's; gaps to the reference and the order are."]
    return lines


def listed(values: list[Any]) -> str:
    return ", ".join("all" if value == 0 else str(value) for value in values)


def number(result: Result) -> str:
    if not result.runs:
        return "failed" if result.failures else NONE
    return str(result.accuracy) + result.few


def markdown(outcome: Outcome) -> str:
    recipe = outcome.recipe
    of = f"mean ± 95 % CI of {outcome.seeds} seeds" if outcome.seeds > 1 else "one seed"
    lines = [f"# {recipe.title}", "", f"{recipe.about}.", "", *about_scale(outcome), ""]
    lines += [f"## {recipe.measure}, {of}; the paper's in brackets", ""]
    names = [column.name for column in recipe.columns]
    numbers = [
        [row.label, *(with_paper(number(result), result.paper) for result in across(outcome, row))]
        for row in recipe.rows
    ]
    lines += bars(["", *names], numbers, len(names))
    if any(result.few for result in outcome.results.values()):
        lines += ["", f"[n]: only n of the {outcome.seeds} seeds are finished."]
    lines += [*gaps(outcome), "", "## Cost: seconds, and megabytes sent by all together", ""]
    costs = [[row.label, *map(cost, across(outcome, row))] for row in recipe.rows]
    lines += bars(["", *names], costs, len(names))
    failures = [
        f"- {result.row.label}, {result.column.name}, seed {seed}: {words}"
        for result in outcome.results.values()
        for seed, words in result.failures.items()
    ]
    lines += ["", "## Failed", "", *failures] if failures else []
    return "\n".join(lines) + "\n"


def gaps(outcome: Outcome) -> list[str]:
    """To the reference, with verdicts; where it stands alone there are none."""
    recipe = outcome.recipe
    names = [column.name for column in recipe.columns]
    if len(names) == 1:
        return []
    lines = ["", f"## Gap to {recipe.reference} (points), seed by seed; the paper's in brackets; verdict", ""]
    judgements = [
        [row.label, *(judged(outcome, row, column) for column in recipe.columns), *ranked(outcome, row)]
        for row in recipe.rows
    ]
    lines += bars(["", *names, "order (ρ)", recipe.highest], judgements, len(names))
    return [*lines, "", "; ".join(f"{verdict}: {words}" for verdict, words in MEANING.items()) + "."]


def bars(headings: list[str], lines: list[list[str]], columns: int) -> list[str]:
    """A table in Markdown, of a recipe with this many columns."""
    head, *body = turned([headings, *lines], columns)
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---", *["---:"] * (len(head) - 1)], *body)]


def across(outcome: Outcome, row: Row) -> list[Result]:
    return [outcome.at(row, column) for column in outcome.recipe.columns]


def with_paper(ours: str, paper: float | None) -> str:
    return ours if paper is None else f"{ours} ({paper:.2f})"


def judged(outcome: Outcome, row: Row, column: Column) -> str:
    if column.name == outcome.recipe.reference or not outcome.at(row, column).runs:
        return NONE
    own, paper = outcome.gap(row, column), outcome.paper_gap(row, column)
    words = f"{own.mean:+z.2f}" + (f" ± {own.half:.2f}" if own.n > 1 else "")
    words += f" to {column.against}" if column.against else ""
    if paper is None:
        return words
    return f"{words} ({paper:+z.2f}) {outcome.verdict(row, column)}"


def ranked(outcome: Outcome, row: Row) -> list[str]:
    found = outcome.order(row)
    if found is None:
        return [NONE, NONE]
    rho, ours, theirs = found
    return [NONE if rho != rho else f"{rho:.2f}", ours if ours == theirs else f"{ours} (paper: {theirs})"]


def cost(result: Result) -> str:
    if not result.runs:
        return NONE
    return f"{result.mean('seconds'):.0f} s, {result.mean('bytes_per_round') * result.mean('rounds') / 1e6:.0f} MB"


def latex(outcome: Outcome) -> str:
    """A tabular for booktabs; the highest mean of a row of the recipe is bold."""
    recipe = outcome.recipe
    grid = [["", *(escaped(column.name) for column in recipe.columns)]]
    for row in recipe.rows:
        results = across(outcome, row)
        best = max((result.accuracy.mean for result in results if result.runs), default=None)
        grid.append([escaped(row.label), *(tex(result, best) for result in results)])
    shown = turned(grid, len(recipe.columns))
    head, *body = (" & ".join(cells) + " \\\\" for cells in shown)
    about = f"scale {outcome.scale}; mean and 95 % confidence interval of {outcome.seeds} seeds"
    columns = f"l{'r' * (len(shown[0]) - 1)}"
    begin = [f"% {recipe.title}; {about}", f"\\begin{{tabular}}{{{columns}}}", "\\toprule", head, "\\midrule"]
    return "\n".join([*begin, *body, "\\bottomrule", "\\end{tabular}"]) + "\n"


def tex(result: Result, best: float | None) -> str:
    if not result.runs:
        return "--"
    mean, half, n = result.accuracy
    text = f"{mean:.2f}" + (f" \\pm {half:.2f}" if n > 1 else "")
    return (f"$\\mathbf{{{text}}}$" if mean == best else f"${text}$") + result.few


def escaped(text: str) -> str:
    for plain, code in {"%": "\\%", "_": "\\_", "&": "\\&", "#": "\\#", "α": "$\\alpha$", "λ": "$\\lambda$"}.items():
        text = text.replace(plain, code)
    return text


def sheet(outcome: Outcome) -> str:
    """CSV, one line a cell."""
    names = [
        "row",
        "column",
        "accuracy",
        "ci95",
        "seeds",
        "paper",
        "against",
        "gap",
        "gap_ci95",
        "paper_gap",
        "verdict",
        "seconds",
    ]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for result in outcome.results.values():
        own, gap = result.accuracy, outcome.gap(result.row, result.column)
        against = outcome.reference(result.row, result.column).column.name
        paper_gap, verdict = (f(result.row, result.column) for f in (outcome.paper_gap, outcome.verdict))
        values = [own.mean, own.half, own.n, result.paper, against, gap.mean, gap.half, paper_gap, verdict]
        seconds = result.mean("seconds") if result.runs else ""
        writer.writerow([result.row.label, result.column.name, *map(plain, values), plain(seconds)])
    return file.getvalue()


def plain(value: object) -> object:
    if isinstance(value, float):
        return "" if value != value else round(value, 4)
    return "" if value is None else value


def live(outcome: Outcome, board: Board) -> Table:
    """The table as far as it is known, with what runs and how long it will take."""
    recipe = outcome.recipe
    done, total = board.work
    left = "" if board.left is None or done >= total else f", about {format_duration(board.left)} left"
    failed = f", {len(board.failed)} failed" if board.failed else ""
    caption = f"{len(board.done)} of {len(board.plans)} runs{failed}{left}; the paper's numbers in brackets"
    table = Table(title=Text(f"{recipe.title}, scale {outcome.scale}"), caption=caption, box=SIMPLE_HEAD)
    table.padding, table.pad_edge = (0, 1, 0, 0), False  # many columns on a narrow screen
    labels = [parted(row.label) for row in recipe.rows]
    if wide(len(recipe.columns)):
        table.add_column("", no_wrap=True)
        for label in labels:
            table.add_column(label, justify="right")
        for column in recipe.columns:
            cells = (" ".join(status(outcome.at(row, column), board)) for row in recipe.rows)
            table.add_row(column.name, *cells)
        return table
    # Its words are not cut: CIFAR-10 and CIFAR-100 are to be told apart.
    table.add_column("", min_width=max(len(word) for label in labels for word in label.split()))
    for column in recipe.columns:
        table.add_column(column.name.replace("-", "-\n").replace(" ", "\n"), justify="right", overflow="fold")
    for row, label in zip(recipe.rows, labels, strict=True):
        table.add_row(label, *("\n".join(status(result, board)) for result in across(outcome, row)))
    return table


def parted(label: str) -> str:
    """Long words on two lines.

    >>> parted("α = 0.01, Fashion-MNIST")
    'α = 0.01, Fashion-\\nMNIST'
    """
    return " ".join(word.replace("-", "-\n") if len(word) > 10 else word for word in label.split(" "))


def status(result: Result, board: Board) -> list[str]:
    """A cell, line by line."""
    going = [
        f"{board.running[folder]}/{board.plans[folder].run.rounds}"
        for folder in result.folders
        if folder in board.running
    ]
    if going:
        return ["round", *going]
    if not result.runs:
        return [number(result) if result.failures else "·"]
    own = result.accuracy
    lines = [f"{own.mean:.1f}", *([f"±{own.half:.1f}"] if own.n > 1 else []), *result.few.split()]
    return [*lines, *([] if result.paper is None else [f"({result.paper:.1f})"])]
