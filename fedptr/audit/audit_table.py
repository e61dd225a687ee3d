"""An audit in the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedptr.audit.metrics import RATES, Measures

HEADINGS = ("AUC (95 % CI)", "accuracy %", "oracle %", *(f"TPR at {100 * rate:g} % FPR" for rate in RATES))
NONE = "–"
AUXILIARY = ("start", "copies %", "closer %", "distances", "members, AUC", "starts, AUC", "TPR %")
EXPLAINED = (
    "Distances are to the nearest of all own samples, of as many own as are held out, and of those; "
    f"TPR: starts that are found at {100 * RATES[-1]:g} % FPR."
)


def format_measures(numbers: Measures) -> list[str]:
    """As in HEADINGS; TPR with its interval, all in percent but the AUC."""
    if "auc" not in numbers:
        return [NONE] * len(HEADINGS)
    low, high = numbers["auc_ci95"]
    oracle = f"{100 * numbers['accuracy_oracle']:.2f}" if "accuracy_oracle" in numbers else NONE
    rates = [f"{rate:g}" for rate in RATES]
    ranges = ["–".join(f"{100 * value:.2f}" for value in numbers["tpr_ci95"][rate]) for rate in rates]
    tpr = [f"{100 * numbers['tpr'][rate]:.2f} ({range_})" for rate, range_ in zip(rates, ranges, strict=True)]
    return [f"{numbers['auc']:.3f} ({low:.3f}–{high:.3f})", f"{100 * numbers['accuracy']:.2f}", oracle, *tpr]


def attack_rows(found: dict[str, Any]) -> Iterator[list[str]]:
    """A row for every attack; Yeom's threshold has no curve of its own."""
    for name, numbers in found["attacks"].items():
        yield [f"{name} ({numbers['shadows']} shadows)" if "shadows" in numbers else name, *format_measures(numbers)]
        if yeom := numbers.get("yeom"):
            point = f"{100 * yeom['tpr']:.2f} % TPR (at {100 * yeom['fpr']:.2f} % FPR)"
            yield [f"{name}, Yeom’s threshold", point, f"{100 * yeom['accuracy']:.2f}", *[NONE] * 3]


def count_examples(found: dict[str, Any]) -> str:
    n, m = found["members"], found["non_members"]
    least = f"the smallest false-positive rate above none is {100 / max(m, 1):.2g} %"
    return f"{n} members, {m} non-members, 50 % is chance; {least}"


def print_audit(found: dict[str, Any], console: Console) -> None:
    what = "half of the examples" if found["target"] == "half" else "the run itself"
    if found["attacks"]:
        title = f"{found['method']} on {found['dataset']}, seed {found['run_seed']}: membership inference on {what}"
        console.print(make_table(["attack", *HEADINGS], attack_rows(found), title, count_examples(found)))
        console.print(client_table(found))
    if "auxiliary" in found:
        console.print(auxiliary_table(found["auxiliary"]))


def auxiliary_table(own: dict[str, Any]) -> Table:
    """What the auxiliary sets give away, over the rounds."""
    title = f"Auxiliary sets of {name_owners(own['owners'])}: real against noise as a start"
    return make_table(AUXILIARY, auxiliary_rows(own), title, f"{own['note']}\n{EXPLAINED}")


def auxiliary_rows(own: dict[str, Any]) -> Iterator[list[str]]:
    for init, series in own["series"].items():
        for entry in series:
            low, high = entry["closer_ci95"]
            closer = f"{100 * entry['closer']:.0f} ({100 * low:.0f}–{100 * high:.0f})"
            near = " / ".join(f"{entry[f'distance_{side}']:.3f}" for side in ("any", "own", "held"))
            copies = f"{100 * entry['copies']:.0f}"
            attacks = [format_measures(entry[name] or {}) for name in ("members", "starts")]
            found = [attacks[0][0], attacks[1][0], attacks[1][-1].partition(" (")[0]]
            yield [f"{init}, round {entry['round']}", copies, closer, near, *found]


def name_owners(owners: list[str]) -> str:
    return "the server" if owners == ["server"] else f"{len(owners)} clients"


def client_table(found: dict[str, Any]) -> Table:
    """The AUC among each client's own examples."""
    attacks = found["attacks"]
    words = f"members of a client against the non-members given to it; {NONE}: too few"
    return make_table(["client", "members", *attacks], client_rows(found), "AUC by client (95 % CI)", words)


def client_rows(found: dict[str, Any]) -> Iterator[list[str]]:
    for entries in zip(*(numbers["clients"] for numbers in found["attacks"].values()), strict=True):
        yield [str(entries[0]["client"]), str(entries[0]["members"]), *(format_measures(entry)[0] for entry in entries)]


def make_table(headings: Sequence[str], lines: Iterable[list[str]], title: str, words: str) -> Table:
    """Intervals are below their numbers, and in one piece, so that it all fits 80 columns."""
    table = Table(title=Text(title), caption=Text(words), box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    cut = [[cell.replace(" (", "\n(").replace(" / ", "\n") for cell in line] for line in lines]
    for number, heading in enumerate(headings):
        numbers = [part for line in cut for part in line[number].split("\n") if part[:2].strip("(").isdigit()]
        width = max([len(part) for part in (*numbers, *heading.split())])
        table.add_column("\n".join(textwrap.wrap(heading, width)), no_wrap=number > 0, overflow="fold")
    for line in cut:
        table.add_row(*line)
    return table
