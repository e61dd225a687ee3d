"""Readers of datasets whose samples belong to somebody: flights of airlines, roles of plays, speakers of vowels.

Each comes from a Python package, of which only the files named in `fedptr.data.sources` are kept.
"""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedptr.data.dataset import Array
from fedptr.data.readers import RawDataset, explain_read_errors
from fedptr.data.tables import table_to_images, with_users
from fedptr.errors import UserError
from fedptr.regular_files import open_regular, read_text

HELD_OUT = 5  # of every user's samples, one in five is for tests
FLIGHTS = "flights.csv.zip"
LARGEST = 1 << 27  # bytes of flights.csv, which has 31 million
MOST_FLIGHTS = 2000  # of an airline
ARRIVALS = ("early", "on time", "late")  # before the hour; up to 14 minutes after it; later, as the US counts delays
AIRPORTS = ("EWR", "JFK", "LGA")
VOWELS = "vowel.dat"
SPEAKERS = [
    "Andrew",
    "Bill",
    "David",
    "Mark",
    "Jo",
    "Kate",
    "Penny",
    "Rose",
    "Mike",
    "Nick",
    "Rich",
    "Tim",
    "Sarah",
    "Sue",
    "Wendy",
]
PLAYS = ("hamlet", "othello", "lear", "macbeth", "romeo_and_juliet", "julius_caesar")
PLAY_FILES = tuple(f"{play}_gut.txt" for play in PLAYS)
LETTERS = " abcdefghijklmnopqrstuvwxyz"
SEEN = 12  # letters before the one to guess
ROLES = 30  # those who say most
MOST_LETTERS = 1500  # of a role


def spread_positions(total: int, most: int) -> Array:
    """All positions, or `most` of them evenly spread.

    >>> spread_positions(3, 5).tolist(), spread_positions(9, 3).tolist()
    ([0, 1, 2], [0, 3, 6])
    """
    return np.arange(min(total, most)) * total // min(total, most) if total else np.arange(0)


def read_flights(folder: Path) -> RawDataset:
    """Flights from New York in 2013, by airline: is a plane early, on time or late, as one can guess when it leaves?

    At most MOST_FLIGHTS of an airline, evenly over the year; one in five of every airline's is for tests.
    """
    by_airline: dict[str, list[tuple[list[float], int]]] = defaultdict(list)
    for row in _open_flights(folder / FLIGHTS):
        if row["arr_delay"] != "NA":  # neither cancelled nor diverted
            by_airline[row["carrier"]].append((_describe_flight(row), _judge_arrival(float(row["arr_delay"]))))
    x, y, users, test = [], [], [], []
    for airline in sorted(by_airline):
        flights = by_airline[airline]
        for k, place in enumerate(spread_positions(len(flights), MOST_FLIGHTS)):
            x.append(flights[place][0])
            y.append(flights[place][1])
            users.append(airline)
            test.append(k % HELD_OUT == HELD_OUT - 1)
    return _divide(table_to_images(np.array(x)), np.array(y), np.array(users), np.array(test), ARRIVALS)


def _open_flights(path: Path) -> Iterator[dict[str, str]]:
    with explain_read_errors(path, "the table of flights"), open_regular(path) as file, zipfile.ZipFile(file) as packed:
        if packed.getinfo("flights.csv").file_size > LARGEST:
            raise ValueError("it is too large")
        with packed.open("flights.csv") as table:
            yield from csv.DictReader(io.TextIOWrapper(table, encoding="utf-8"))


def _describe_flight(row: dict[str, str]) -> list[float]:
    """Month, hours of the planned departure and arrival, planned duration, distance, delay at departure, airport."""
    leaves, arrives = (int(row[f"sched_{what}_time"]) for what in ("dep", "arr"))
    leaves_at, arrives_at = (time // 100 + time % 100 / 60 for time in (leaves, arrives))
    delay = min(max(float(row["dep_delay"]), -30.0), 120.0)
    there = [float(row["origin"] == airport) for airport in AIRPORTS]
    planned = (arrives_at - leaves_at) % 24
    return [float(row["month"]), leaves_at, arrives_at, planned, float(row["distance"]) / 1000, delay, *there]


def _judge_arrival(delay: float) -> int:
    """
    >>> [ARRIVALS[_judge_arrival(delay)] for delay in (-1, 0, 14, 15)]
    ['early', 'on time', 'on time', 'late']
    """
    return int(delay >= 0) + int(delay >= 15)


def read_vowels(folder: Path) -> RawDataset:
    """Deterding's vowels in KEEL's form, by speaker: ten numbers of a sound, which of eleven vowels is it?

    The published test part is of seven other speakers.
    """
    path = folder / VOWELS
    with explain_read_errors(path, "a table of vowels"):
        table = np.array([line.split(",") for line in read_text(path).split()], dtype=np.float64)
        if table.ndim != 2 or table.shape[1] != 14:
            raise ValueError(f"its shape is {list(table.shape)}")
    test, users = table[:, 0] == 1, np.array(SPEAKERS)[table[:, 1].astype(int)]
    return _divide(table_to_images(table[:, 3:13]), table[:, 13].astype(np.int64), users, test, ())


def read_shakespeare(folder: Path) -> RawDataset:
    """Six tragedies by role: which letter comes after these twelve?

    A role's lines are joined; letters are small, and everything else is one space. Of the letters a role says, at most
    MOST_LETTERS, evenly spread, are to be guessed. The last fifth of what it says is for tests: no test sample sees a
    letter that is guessed in training.
    """
    said: dict[str, str] = {}
    for play, name in zip(PLAYS, PLAY_FILES, strict=True):
        path = folder / name
        with explain_read_errors(path, "a play"):
            for role, words in collect_roles(read_text(path, encoding="latin-1")).items():
                said[f"{role} ({play.replace('_', ' ').title()})"] = words
    most = sorted(said, key=lambda role: (-len(said[role]), role))[:ROLES]
    if len(most) < ROLES:
        raise UserError(f"{folder} has the lines of {len(most)} roles, not {ROLES}; get the dataset again")
    x, y, users, test = [], [], [], []
    for role in most:
        codes = np.array([LETTERS.index(letter) for letter in said[role]])
        first_test = len(codes) - len(codes) // HELD_OUT
        guessed = SEEN + spread_positions(len(codes) - SEEN, MOST_LETTERS)
        guessed = guessed[(guessed < first_test) | (guessed >= first_test + SEEN)]
        before = codes[guessed[:, None] + np.arange(-SEEN, 0)]
        x.append(np.eye(len(LETTERS), dtype=np.uint8)[before].reshape(len(guessed), -1))
        y.append(codes[guessed])
        users.append(np.full(len(guessed), role))
        test.append(guessed >= first_test)
    letters, guesses, whose, tested = (np.concatenate(parts) for parts in (x, y, users, test))
    return _divide(letters[:, :, None, None], guesses, whose, tested, ("space", *LETTERS[1:]))


def collect_roles(text: str) -> dict[str, str]:
    """What every role says: a line that is a name with a full stop, then lines up to an empty one.

    >>> collect_roles("IAGO.\\nO, sir, [Aside.] content you;\\nI follow him.\\n\\n[Exit.]\\n\\nSCENE.\\n")
    {'Iago': 'o sir content you i follow him'}
    """
    found: dict[str, list[str]] = defaultdict(list)
    for block in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        role, _, lines = block.strip().partition("\n")
        if lines and re.fullmatch(r"[A-Z][A-Za-z' ]{0,20}\.", role.strip()):
            plain = re.sub(r"\[[^]]*\]", " ", lines).replace("'", "").lower()
            found[role.strip()[:-1].title()].append(plain)
    return {role: re.sub(r"[^a-z]+", " ", " ".join(lines)).strip() for role, lines in found.items()}


def _divide(x: Array, y: Array, users: Array, test: Array, classes: Sequence[str]) -> RawDataset:
    y = y.astype(np.int64)
    made = RawDataset(x[~test], y[~test], x[test], y[test], tuple(classes))
    return with_users(made, users[~test], users[test])
