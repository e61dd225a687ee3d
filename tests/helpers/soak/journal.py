"""What a soak has come to so far: a line for every case, from which it continues after its own end."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


def read_entries(folder: Path) -> list[Entry]:
    """Of all journals in the folder."""
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def count_kills(entries: list[Entry]) -> int:
    return sum(sum(entry["hits"].values()) for entry in entries)


class Journal:
    """Of one of the processes of a soak."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def add(self, kind: str, case: str, hits: Counter[str], seconds: float, lost: str = "") -> None:
        entry = {"kind": kind, "case": case, "hits": dict(hits), "seconds": round(seconds, 1), "lost": lost}
        self.entries.append(entry)
        with open(self.path, "a") as file:
            file.write(json.dumps(entry) + "\n")
        outcome = f"LOST: {lost}" if lost else "same"
        total = count_kills(read_entries(self.path.parent))
        print(f"{kind:9} {case:24} {hits.total():4} kills, {seconds:5.0f} s: {outcome}; {total} so far", flush=True)

    def of(self, kind: str) -> list[Entry]:
        return [entry for entry in self.entries if entry["kind"] == kind]

    def seconds(self, kind: str = "") -> float:
        return float(sum(entry["seconds"] for entry in (self.of(kind) if kind else self.entries)))


def summarise(entries: list[Entry]) -> str:
    """Kills by kind and by where they hit, what was compared, what was lost."""
    lines = [f"{'kind':10} {'cases':>6} {'compared':>9} {'kills':>6} {'lost':>5} {'seconds':>8}"]
    for kind in dict.fromkeys(entry["kind"] for entry in entries):
        some = [entry for entry in entries if entry["kind"] == kind]
        cases, lost = len({entry["case"] for entry in some}), sum(bool(entry["lost"]) for entry in some)
        seconds = sum(entry["seconds"] for entry in some)
        lines.append(f"{kind:10} {cases:6} {len(some) - lost:9} {count_kills(some):6} {lost:5} {seconds:8.0f}")
        places: Counter[str] = Counter()
        for entry in some:
            places.update(entry["hits"])
        lines += [f"{count:34}  {place}" for place, count in places.most_common()]
    lines += [f"LOST: {entry['kind']} {entry['case']}: {entry['lost']}" for entry in entries if entry["lost"]]
    lost = sum(bool(entry["lost"]) for entry in entries)
    total = (
        f"{count_kills(entries)} kills, {len(entries) - lost} ends equal to those of their twins, {lost or 'none'} lost"
    )
    return "\n".join([*lines, "", total])
