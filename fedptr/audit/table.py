"""An audit in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedptr.audit.metrics import RATES, Measures

HEADINGS = ("AUC (95 % CI)", "accuracy %", "oracle %", *(f"TPR at {100 * rate:g} % FPR" for rate in RATES))
NONE = "–"
AUXILIARY = (
    "start",
    "round",
    "copies of own %",
    "closer to own %",
    "distance to own / as many own / as many held-out",
    "members, AUC",
    "starts, AUC",
    f"starts, {HEADINGS[-1]}",
)


def cells(numbers: Measures) -> list[str]:
    """As in HEADINGS; TPR with its interval, all in percent but the AUC."""
    if "auc" not in numbers:
        return [NONE] * len(HEADINGS)
    low, high = numbers["auc_ci95"]
    oracle = f"{100 * numbers['accuracy_oracle']:.2f}" if "accuracy_oracle" in numbers else NONE
    rates = [f"{rate:g}" for rate in RATES]
    ranges = ["–".join(f"{100 * value:.2f}" for value in numbers["tpr_ci95"][rate]) for rate in rates]
    tpr = [f"{100 * numbers['tpr'][rate]:.2f} ({range_})" for rate, range_ in zip(rates, ranges, strict=True)]
    return [f"{numbers['auc']:.4f} ({low:.4f}–{high:.4f})", f"{100 * numbers['accuracy']:.2f}", oracle, *tpr]


def rows(found: dict[str, Any]) -> Iterator[list[str]]:
    """A row for every attack; Yeom's threshold has no curve of its own."""
    for name, numbers in found["attacks"].items():
        yield [f"{name} ({numbers['shadows']} shadows)" if "shadows" in numbers else name, *cells(numbers)]
        if yeom := numbers.get("yeom"):
            point = f"TPR {100 * yeom['tpr']:.2f} % at {100 * yeom['fpr']:.2f} % FPR"
            yield [f"{name}, Yeom’s threshold", point, f"{100 * yeom['accuracy']:.2f}", *[NONE] * 3]


def caption(found: dict[str, Any]) -> str:
    n, m = found["members"], found["non_members"]
    least = f"the smallest false-positive rate above none is {100 / max(m, 1):.2g} %"
    return f"{n} members, {m} non-members, 50 % is chance; {least}"


def show(found: dict[str, Any], console: Console) -> None:
    what = "half of the examples" if found["target"] == "half" else "the run itself"
    if found["attacks"]:
        title = f"{found['method']} on {found['dataset']}, seed {found['run_seed']}: membership inference on {what}"
        console.print(framed(["attack", *HEADINGS], rows(found), title, caption(found)))
        console.print(by_client(found))
    if "auxiliary" in found:
        console.print(auxiliary(found["auxiliary"]))


def auxiliary(own: dict[str, Any]) -> Table:
    """What the auxiliary sets give away, over the rounds."""
    title = f"Auxiliary sets of {counted(own['owners'])}: real against noise as a start"
    return framed(AUXILIARY, auxiliary_rows(own), title, own["note"])


def auxiliary_rows(own: dict[str, Any]) -> Iterator[list[str]]:
    for init, series in own["series"].items():
        for entry in series:
            low, high = entry["closer_ci95"]
            closer = f"{100 * entry['closer']:.1f} ({100 * low:.1f}–{100 * high:.1f})"
            near = " / ".join(f"{entry[f'distance_{side}']:.3f}" for side in ("any", "own", "held"))
            copies = f"{100 * entry['copies']:.0f}"
            attacks = [cells(entry[name] or {}) for name in ("members", "starts")]
            yield [init, str(entry["round"]), copies, closer, near, attacks[0][0], attacks[1][0], attacks[1][-1]]


def counted(owners: list[str]) -> str:
    return "the server" if owners == ["server"] else f"{len(owners)} clients"


def by_client(found: dict[str, Any]) -> Table:
    """The AUC among each client's own examples."""
    attacks = found["attacks"]
    words = f"members of a client against the non-members given to it; {NONE}: too few"
    return framed(["client", "members", *attacks], client_rows(found), "AUC by client (95 % CI)", words)


def client_rows(found: dict[str, Any]) -> Iterator[list[str]]:
    for entries in zip(*(numbers["clients"] for numbers in found["attacks"].values()), strict=True):
        yield [str(entries[0]["client"]), str(entries[0]["members"]), *(cells(entry)[0] for entry in entries)]


def framed(headings: Sequence[str], lines: Iterable[list[str]], title: str, words: str) -> Table:
    table = Table(title=Text(title), caption=Text(words), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for line in lines:
        table.add_row(*line)
    return table
