"""An outcome as Markdown, LaTeX and CSV, and as a table that fills in while the cells run."""

from __future__ import annotations

import csv
import io
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedptr.jobs.run_queue import QueueState
from fedptr.messages import format_duration
from fedptr.reproduce.outcome import CellResult, Outcome
from fedptr.reproduce.recipe import Column, Row, find_reductions, is_comparable, read_common
from fedptr.reproduce.scores import GLOBAL_MODEL, SCORES
from fedptr.reproduce.verdict import MEANING
from fedptr.reproduce.wide_table import is_wide, transpose_if_wide

NONE = "–"


def describe_scale(outcome: Outcome) -> list[str]:
    """What the scale reduces; this text stands above every table."""
    if outcome.scale == "paper":
        return ["The paper's size: nothing was reduced."]
    own = outcome.recipe.scale_about if outcome.scale == "cpu" else ""
    words = own or read_common()["scales"][outcome.scale]["about"]
    lines = [f"Scale `{outcome.scale}`: {words}. Reduced, paper → here:", ""]
    for place, (theirs, ours) in find_reductions(outcome.recipe, outcome.scale).items():
        lines.append(f"- `{place}`: {format_values(theirs)} → {format_values(ours)}")
    if own:
        return lines
    if not is_comparable(outcome.scale):
        return [*lines, "", "So neither accuracies nor gaps are comparable with the paper's."]
    return [*lines, "", "So accuracies are not comparable with the paper's; gaps to the reference and the order are."]


def format_values(values: list[Any]) -> str:
    return ", ".join("all" if value == 0 else str(value) for value in values)


def format_accuracy(result: CellResult, score: str = "") -> str:
    if not result.runs:
        return "failed" if result.failures else NONE
    return str(result.interval(score or result.score)) + result.seeds_note


def format_markdown(outcome: Outcome) -> str:
    recipe = outcome.recipe
    of = f"mean ± 95 % CI of {outcome.seeds} seeds" if outcome.seeds > 1 else "one seed"
    lines = [f"# {recipe.title}", "", f"{recipe.about}.", "", *describe_scale(outcome), ""]
    lines += [f"## {recipe.describe_measure(outcome.scale)}, {of}; the paper's in brackets", ""]
    names = [column.name for column in recipe.columns]
    numbers = [
        [
            row.label,
            *(add_paper_number(format_accuracy(result), result.paper) for result in results_in_row(outcome, row)),
        ]
        for row in recipe.rows
    ]
    lines += markdown_table(["", *names], numbers, len(names))
    if any(result.seeds_note for result in outcome.results.values()):
        lines += ["", f"[n]: only n of the {outcome.seeds} seeds are finished."]
    for score in recipe.more_scores:
        words = recipe.describe_measure(outcome.scale, GLOBAL_MODEL if score == "accuracy" else SCORES[score].words)
        others = [
            [row.label, *(format_accuracy(r, score) for r in results_in_row(outcome, row))] for row in recipe.rows
        ]
        lines += ["", f"## {words}", "", *markdown_table(["", *names], others, len(names))]
    lines += [*format_gaps(outcome), "", "## Cost: seconds, and megabytes sent by all together", ""]
    costs = [[row.label, *map(format_cost, results_in_row(outcome, row))] for row in recipe.rows]
    lines += markdown_table(["", *names], costs, len(names))
    failures = [
        f"- {result.row.label}, {result.column.name}, seed {seed}: {words}"
        for result in outcome.results.values()
        for seed, words in result.failures.items()
    ]
    lines += ["", "## Failed", "", *failures] if failures else []
    return "\n".join(lines) + "\n"


def format_gaps(outcome: Outcome) -> list[str]:
    """The gaps to the reference, with verdicts; none if the reference is the only column."""
    recipe = outcome.recipe
    names = [column.name for column in recipe.columns]
    if len(names) == 1:
        return []
    comparable = is_comparable(outcome.scale)
    paper = "; the paper's in brackets; verdict" if comparable else ""
    lines = ["", f"## Gap to {recipe.reference} (points), seed by seed{paper}", ""]
    judgements = [
        [row.label, *(format_gap(outcome, row, column) for column in recipe.columns)]
        + (format_order(outcome, row) if comparable else [])
        for row in recipe.rows
    ]
    order = ["order (ρ)", recipe.highest_heading] if comparable else []
    lines += markdown_table(["", *names, *order], judgements, len(names))
    if not comparable:
        return lines
    return [*lines, "", "; ".join(f"{verdict}: {words}" for verdict, words in MEANING.items()) + "."]


def markdown_table(headings: list[str], lines: list[list[str]], columns: int) -> list[str]:
    """A table in Markdown, of a recipe with this many columns; transposed if these are many."""
    head, *body = transpose_if_wide([headings, *lines], columns)
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---", *["---:"] * (len(head) - 1)], *body)]


def results_in_row(outcome: Outcome, row: Row) -> list[CellResult]:
    return [outcome.result(row, column) for column in outcome.recipe.columns]


def add_paper_number(ours: str, paper: float | None) -> str:
    return ours if paper is None else f"{ours} ({paper:.2f})"


def format_gap(outcome: Outcome, row: Row, column: Column) -> str:
    if column.name == outcome.recipe.reference or not outcome.result(row, column).runs:
        return NONE
    own, paper = outcome.gap(row, column), outcome.paper_gap(row, column)
    words = f"{own.mean:+z.2f}" + (f" ± {own.half:.2f}" if own.n > 1 else "")
    words += f" to {column.against}" if column.against else ""
    if paper is None:
        return words
    return f"{words} ({paper:+z.2f}) {outcome.verdict(row, column)}"


def format_order(outcome: Outcome, row: Row) -> list[str]:
    found = outcome.compare_order(row)
    if found is None:
        return [NONE, NONE]
    rho, ours, theirs = found
    return [NONE if rho != rho else f"{rho:.2f}", ours if ours == theirs else f"{ours} (paper: {theirs})"]


def format_cost(result: CellResult) -> str:
    if not result.runs:
        return NONE
    return f"{result.mean_over_seeds('seconds'):.0f} s, {result.megabytes:.0f} MB"


def format_latex(outcome: Outcome) -> str:
    """A tabular for booktabs; the highest mean of each of the recipe's rows is bold."""
    recipe = outcome.recipe
    grid = [["", *(escape_latex(column.name) for column in recipe.columns)]]
    for row in recipe.rows:
        results = results_in_row(outcome, row)
        best = max((result.accuracy.mean for result in results if result.runs), default=None)
        grid.append([escape_latex(row.label), *(format_latex_cell(result, best) for result in results)])
    shown = transpose_if_wide(grid, len(recipe.columns))
    head, *body = (" & ".join(cells) + " \\\\" for cells in shown)
    about = f"scale {outcome.scale}; mean and 95 % confidence interval of {outcome.seeds} seeds"
    columns = f"l{'r' * (len(shown[0]) - 1)}"
    begin = [f"% {recipe.title}; {about}", f"\\begin{{tabular}}{{{columns}}}", "\\toprule", head, "\\midrule"]
    return "\n".join([*begin, *body, "\\bottomrule", "\\end{tabular}"]) + "\n"


def format_latex_cell(result: CellResult, best: float | None) -> str:
    if not result.runs:
        return "--"
    mean, half, n = result.accuracy
    text = f"{mean:.2f}" + (f" \\pm {half:.2f}" if n > 1 else "")
    return (f"$\\mathbf{{{text}}}$" if mean == best else f"${text}$") + result.seeds_note


def escape_latex(text: str) -> str:
    for plain, code in {"%": "\\%", "_": "\\_", "&": "\\&", "#": "\\#", "α": "$\\alpha$", "λ": "$\\lambda$"}.items():
        text = text.replace(plain, code)
    return text


def format_csv(outcome: Outcome) -> str:
    """One line for each cell."""
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
        *outcome.recipe.more_scores,
    ]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for result in outcome.results.values():
        own, gap = result.accuracy, outcome.gap(result.row, result.column)
        against = outcome.reference_result(result.row, result.column).column.name
        paper_gap, verdict = (f(result.row, result.column) for f in (outcome.paper_gap, outcome.verdict))
        values = [own.mean, own.half, own.n, result.paper, against, gap.mean, gap.half, paper_gap, verdict]
        values += [result.mean_over_seeds("seconds") if result.runs else None]
        values += [result.interval(score).mean if result.runs else None for score in outcome.recipe.more_scores]
        writer.writerow([result.row.label, result.column.name, *map(format_csv_value, values)])
    return file.getvalue()


def format_csv_value(value: object) -> object:
    if isinstance(value, float):
        return "" if value != value else round(value, 4)
    return "" if value is None else value


def build_live_table(outcome: Outcome, board: QueueState) -> Table:
    """The table so far, with the runs in progress and an estimate of the time left."""
    recipe = outcome.recipe
    done, total = board.work
    left = "" if board.left is None or done >= total else f", about {format_duration(board.left)} left"
    failed = f", {len(board.failed)} failed" if board.failed else ""
    caption = f"{len(board.done)} of {len(board.plans)} runs{failed}{left}; the paper's numbers in brackets"
    table = Table(title=Text(f"{recipe.title}, scale {outcome.scale}"), caption=caption, box=SIMPLE_HEAD)
    table.padding, table.pad_edge = (0, 1, 0, 0), False  # many columns on a narrow screen
    labels = [break_long_words(row.label) for row in recipe.rows]
    if is_wide(len(recipe.columns)):
        table.add_column("", no_wrap=True)
        for label in labels:
            table.add_column(label, justify="right")
        for column in recipe.columns:
            cells = (" ".join(format_live_cell(outcome.result(row, column), board)) for row in recipe.rows)
            table.add_row(column.name, *cells)
        return table
    # Wide enough for whole words: cut ones would make CIFAR-10 and CIFAR-100 look the same.
    table.add_column("", min_width=max(len(word) for label in labels for word in label.split()))
    for column in recipe.columns:
        table.add_column(column.name.replace("-", "-\n").replace(" ", "\n"), justify="right", overflow="fold")
    for row, label in zip(recipe.rows, labels, strict=True):
        table.add_row(label, *("\n".join(format_live_cell(result, board)) for result in results_in_row(outcome, row)))
    return table


def break_long_words(label: str) -> str:
    """Breaks long words after their hyphens.

    >>> break_long_words("α = 0.01, Fashion-MNIST")
    'α = 0.01, Fashion-\\nMNIST'
    """
    return " ".join(word.replace("-", "-\n") if len(word) > 10 else word for word in label.split(" "))


def format_live_cell(result: CellResult, board: QueueState) -> list[str]:
    """The lines of a cell of the live table."""
    rounds = [
        f"{board.running[folder]}/{board.plans[folder].run.rounds}"
        for folder in result.folders
        if folder in board.running
    ]
    if rounds:
        return ["round", *rounds]
    if not result.runs:
        return [format_accuracy(result) if result.failures else "·"]
    own = result.accuracy
    lines = [f"{own.mean:.1f}", *([f"±{own.half:.1f}"] if own.n > 1 else []), *result.seeds_note.split()]
    return [*lines, *([] if result.paper is None else [f"({result.paper:.1f})"])]
