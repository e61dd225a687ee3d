"""The section about clients: who is left behind, with the global model and with personal ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

import numpy as np

from fedptr.report.client_data import (
    SeriesScores,
    Spread,
    describe_final,
    describe_gain,
    final_by_client,
    shared_clients,
)
from fedptr.report.group_runs import Series
from fedptr.report.html_tables import render_table
from fedptr.runs.summary import describe_clients

COLUMNS = {
    "weighted": "weighted mean %",
    "mean": "plain mean %",
    "std": "spread (std)",
    "p10": "10 % quantile",
    "p50": "median",
    "p90": "90 % quantile",
    "worst": "worst client",
    "best": "best client",
}
EXPLAINED = (
    "Accuracy (%) on each client’s own test data, the mean of its last evaluated rounds (at most five), and how it "
    "spreads over the clients. Worse off: clients whose personal model is less accurate for them than the global one. "
    "The best value of the worst client is bold."
)
LOSSES = {"weighted": "weighted mean", "mean": "plain mean", "std": "spread (std)", "worst": "worst client"}
LISTED = 25  # clients in the table by client


def render_spread_table(found: Sequence[SeriesScores]) -> str:
    """A row for every method and model; the best value of the worst client is bold."""
    spreads = [(one, model, describe_final(one, model)) for one in found for model in one.models]
    top = max(spread.mean["worst"] for _, _, spread in spreads)
    rows = []
    for one, model, spread in spreads:
        numbers = {name: format_interval(spread, name) for name in COLUMNS}
        if spread.mean["worst"] >= top:
            numbers["worst"] = f"<strong>{numbers['worst']}</strong>"
        for name, clients in (("worst", spread.worst), ("best", spread.best)):
            who = name_clients(clients, one.same_clients)
            numbers[name] += f'<br><span class="paper">{who}</span>' if who else ""
        rows.append([escape(one.label), model, *numbers.values(), *format_gain(one, model)])
    headings = ["method", "model", *COLUMNS.values(), "personal − global", "worse off"]
    return f'<div class="spread">{render_table(headings, rows, words=2)}</div>'


def explain_scores(found: Sequence[SeriesScores]) -> str:
    """What the numbers are, and whose personal models are made for the evaluation."""
    adapted = [one.label for one in found if one.used == "personal" and one.runs[0].run.plan.method.adapts]
    if not adapted:
        return EXPLAINED
    return (
        f"{EXPLAINED} Of {', '.join(adapted)} the personal model is the global one after adaptation to the client’s "
        "training data, and the global one is before it."
    )


def render_loss_table(series: Sequence[Series]) -> str:
    """Of tasks without classes: the loss on the clients' own test data, mean over seeds; empty where there is none."""
    rows = []
    for one in series:
        found = [describe_clients(run.records) for run in one.runs]
        for model, name in (("global", "clients_global_loss"), ("personal", "clients_personal_loss")):
            if all(name in told for told in found):
                means = [float(np.mean([told[name][key] for told in found])) for key in LOSSES]
                rows.append([escape(one.label), model, *(f"{value:.3f}" for value in means)])
    if not rows:
        return ""
    explained = (
        "Loss on each client’s own test data, the mean of its last evaluated rounds (at most five); less is better."
    )
    table = render_table(["method", "model", *LOSSES.values()], rows, words=2)
    return f'<h3>How well it works for every client</h3>{table}<p class="small">{explained}</p>'


def format_interval(spread: Spread, name: str) -> str:
    return f"{spread.mean[name]:.1f}" + ("" if spread.half is None else f" ± {spread.half[name]:.1f}")


def format_gain(one: SeriesScores, model: str) -> tuple[str, str]:
    """In the row of the personal model: its gain over the global one, and how many clients are worse off with it."""
    if model != "personal":
        return "", ""
    found = describe_gain(one)
    (gain, half), (worse, _), (clients, _) = found["gain"], found["worse"], found["clients"]
    return f"{gain:+.1f}" + ("" if half is None else f" ± {half:.1f}"), f"{worse:.3g} of {clients:.4g}"


def name_clients(by_seed: Sequence[Sequence[int]], same: bool) -> str:
    """Who it is: one client, a few that tie, or others in other seeds.

    >>> name_clients([[7]], True), name_clients([[2, 5]], True), name_clients([[0, 1, 2, 3]], True)
    ('client 7', 'clients 2, 5', '4 clients')
    >>> name_clients([[7], [7], [3]], True), name_clients([[7], [3]], False)
    ('client 7 (2 of 3 seeds)', '')
    """
    if not same:
        return ""
    if len({tuple(ids) for ids in by_seed}) > 1:
        (who, times), *_ = Counter(i for ids in by_seed for i in ids).most_common(1)
        return f"client {who} ({times} of {len(by_seed)} seeds)"
    ids = by_seed[0]
    if len(ids) > 3:
        return f"{len(ids)} clients"
    return f"client{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}"


def render_client_table(found: Sequence[SeriesScores]) -> str:
    """The clients that do worst over all methods, folded up; nothing where the methods had other clients."""
    if not shared_clients(found):
        return ""
    first = found[0].runs[0]
    finals = {(one, model): final_by_client(one, model) for one in found for model in one.models}
    used = np.array([finals[one, one.used] for one in found])
    order = np.argsort(np.where(np.isfinite(used), used, 0).mean(axis=0), kind="stable")[:LISTED]
    rows = []
    for k in order:
        cells = [format_client([float(finals[one, model][k]) for model in one.models]) for one in found]
        rows.append([f"client {first.ids[k]}", f"{first.tests[k]:,.0f}", *cells])
    some = f"the {LISTED} with the lowest accuracy" if len(first.ids) > LISTED else "the lowest accuracy first"
    table = render_table(["client", "test samples", *(one.label for one in found)], rows)
    return (
        f'<details class="clients"><summary>By client: {some}, mean over all methods</summary>{table}'
        '<p class="small">Accuracy (%) of the global model → of the personal one, where a method has any; '
        "▼ marks clients that are worse off with their personal model.</p></details>"
    )


def format_client(accuracies: Sequence[float]) -> str:
    """The accuracies of a client's models; NaN is a dash.

    >>> format_client([50.0]), format_client([50.0, 40.04]), format_client([float("nan"), 1.0])
    ('50.0', '50.0 → 40.0 <span class="worse">▼</span>', '– → 1.0')
    """
    text = " → ".join(f"{value:.1f}" if np.isfinite(value) else "–" for value in accuracies)
    return text + (' <span class="worse">▼</span>' if accuracies[-1] < accuracies[0] else "")
