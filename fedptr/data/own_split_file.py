"""Split files that people write themselves: a few lines of JSON, or a table of samples and clients.

    {"clients": [[0, 5, 7], [1, 2]], "dropped": 3}          a list of samples for every client
    {"clients": {"anna": [0, 5, 7], "ben": [1, 2]}}         the same with names
    {"clients": …, "tests": [[3], [4, 6]]}                  training samples that a client is tested on instead

    sample,client       a .csv; every sample is in one line, and one without a client is dropped
    0,anna

Samples are numbered from 0 in the order of the training part. `complete_fields` adds what a file that fedptr saves has
besides; `fedptr.data.split.Split` checks the samples of both alike.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

from fedptr.data.image_folders import natural_order
from fedptr.errors import UserError

COLUMNS = ["sample", "client"]
ENTRIES = ("clients", "dropped", "tests", "names")
FORM = 'write it as {"clients": [[0, 5, 7], [1, 2]]}'


def parse_split_csv(content: bytes, path: str | Path) -> dict[str, Any]:
    """The clients, their names and the number of dropped samples of a .csv."""
    try:
        head, *rows = [row for row in csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")) if row]
    except (csv.Error, ValueError):
        raise UserError(f"split file {path} cannot be read as a table; begin it with the line sample,client") from None
    if [name.strip().lower() for name in head] != COLUMNS:
        raise UserError(f"split file {path} begins with {','.join(head)[:40]!r}; begin it with the line sample,client")
    clients: dict[str, list[int]] = {}
    dropped = 0
    for line, row in enumerate(rows, 2):
        if len(row) != 2 or not re.fullmatch(r"[0-9]{1,18}", row[0].strip(), re.ASCII):
            raise UserError(f"row {line} of split file {path} is not a sample's number and a client; correct it")
        sample, client = row[0].strip(), row[1].strip()
        if client:
            clients.setdefault(client, []).append(int(sample))
        else:
            dropped += 1
    ordered = {name: clients[name] for name in sorted(clients, key=natural_order)}
    return {"clients": ordered, "dropped": dropped}


def complete_fields(content: dict[str, Any], path: str | Path, samples: int | None) -> dict[str, Any]:
    """The fields of a saved split, from those of one that somebody has written; `samples` is the dataset's size."""
    for name in content:
        if name not in ENTRIES:
            raise UserError(
                f"split file {path} has an unknown entry {name[:40]!r}; one of your own has {', '.join(ENTRIES)}"
            )
    if "clients" not in content:
        raise UserError(f"split file {path} does not say which samples clients have; {FORM}")
    clients, names = separate_names(content["clients"], content.get("names", []), path)
    fields = {"clients": clients, "names": names, "dropped": content.get("dropped", 0), "origin": Path(path).name}
    fields |= {"draws": 1, "moved": 0}
    tests = content.get("tests")
    used = count_samples(clients)
    if tests is not None and not (isinstance(tests, dict) and "kind" in tests):
        tests = {"kind": "holdout", "samples": samples, "clients": order_by_name(tests, names, path)}
        used += count_samples(tests["clients"])
    if samples is None:  # as many as it names
        samples = used + (fields["dropped"] if type(fields["dropped"]) is int else 0)
    if tests is not None:
        fields["tests"] = {**tests, "samples": samples if tests.get("samples") is None else tests["samples"]}
    return {**fields, "samples": samples}


def separate_names(clients: Any, names: Any, path: str | Path) -> tuple[Any, Any]:
    """The clients' samples in order, and their names."""
    if not isinstance(clients, dict):
        return clients, names
    if names:
        raise UserError(f"split file {path} names its clients twice; leave the entry 'names' out")
    return list(clients.values()), list(clients)


def order_by_name(tests: Any, names: Any, path: str | Path) -> Any:
    """The clients' test samples in the order of the clients; whoever is not named has none."""
    if not isinstance(tests, dict):
        return tests
    strange = [name for name in tests if name not in names]
    if strange:
        raise UserError(f"split file {path} has tests for {strange[0][:40]!r}, which is none of its clients")
    return [tests.get(name, []) for name in names]


def count_samples(clients: Any) -> int:
    """How many numbers there are; what is no list of lists is refused later."""
    return sum(len(part) for part in clients if isinstance(part, list)) if isinstance(clients, list) else 0
