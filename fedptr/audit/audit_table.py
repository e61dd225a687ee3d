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
from fedptr.messages import count_noun

HEADINGS = ("AUC (95 % CI)", "accuracy %", "oracle %", *(f"TPR at {100 * rate:g} % FPR" for rate in RATES))
NONE = "–"
NEAR = ("copies %", "closer %", "distances", "members, AUC")
AUXILIARY = ("start", *NEAR, "starts, AUC", "TPR %")
SENT = ("sets", "images", *NEAR, "TPR %")
DISTANCES = "Distances are to the nearest of all own samples, of as many own as are held out, and of those; TPR: "
EXPLAINED = {
    "auxiliary": f"{DISTANCES}starts that are found at {100 * RATES[-1]:g} % FPR.",
    "sent": f"{DISTANCES}members that are found at {100 * RATES[-1]:g} % FPR.",
}


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
    if "sent" in found:
        console.print(sent_table(found["sent"]))


def auxiliary_table(own: dict[str, Any]) -> Table:
    """What the auxiliary sets give away, over the rounds."""
    title = f"Auxiliary sets of {name_owners(own['owners'])}: real against noise as a start"
    return make_table(AUXILIARY, auxiliary_rows(own), title, f"{own['note']}\n{EXPLAINED['auxiliary']}")


def auxiliary_rows(own: dict[str, Any]) -> Iterator[list[str]]:
    for init, series in own["series"].items():
        for entry in series:
            starts = format_measures(entry["starts"] or {})
            yield [f"{init}, round {entry['round']}", *near_cells(entry), starts[0], found_rate(starts)]


def sent_table(own: dict[str, Any]) -> Table:
    """What the sets that clients sent give away: all together, and each."""
    title = f"Sets that {name_owners(own['owners'])} sent"
    return make_table(SENT, sent_rows(own), title, f"{own['note']}\n{EXPLAINED['sent']}")


def sent_rows(own: dict[str, Any]) -> Iterator[list[str]]:
    everyone = [(f"all, round {entry['round']}", entry) for series in own["series"].values() for entry in series]
    for name, entry in [*everyone, *((describe_owner(entry["owner"]), entry) for entry in own["by_owner"])]:
        members = format_measures(entry["members"] or {})
        yield [name, f"{entry['images']:.0f}", *near_cells(entry), found_rate(members)]


def near_cells(entry: dict[str, Any]) -> list[str]:
    """As in NEAR."""
    low, high = entry["closer_ci95"]
    closer = f"{100 * entry['closer']:.0f} ({100 * low:.0f}–{100 * high:.0f})"
    near = " / ".join(f"{entry[f'distance_{side}']:.3f}" for side in ("any", "own", "held"))
    return [f"{100 * entry['copies']:.0f}", closer, near, format_measures(entry["members"] or {})[0]]


def found_rate(cells: Sequence[str]) -> str:
    """The TPR at the highest FPR, without its interval."""
    return cells[-1].partition(" (")[0]


def describe_owner(owner: str) -> str:
    """
    >>> describe_owner("client3")
    'client 3'
    """
    return owner.replace("client", "client ")


def name_owners(owners: list[str]) -> str:
    return "the server" if owners == ["server"] else count_noun(len(owners), "client")


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
