"""One case: killed again and again, then left to its end, and compared with its twin that was left alone."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

from soak.kill_jobs import kill_job_or_queue
from soak.kinds import Kind
from soak.places import files_below, tell_place
from soak.processes import Start, kill, start_as_user, wait_for
from soak.strikes import wait_for_instant

AS_USER = 0.02  # of the starts, so that there are kills while it imports, too
JOBS = 0.15  # of the starts with jobs that are processes


class LostError(AssertionError):
    """Something did not end as it would have."""


def find_expected(kind: Kind, case: str, place: Path) -> object:
    """What the twin comes to, which is started as a user does; it is run once for all turns."""
    known = place / "expected.json"
    if not known.exists():
        alone, log = place / "alone", place / "alone.log"
        if not alone.exists():
            kind.prepare(case, alone)
        code = run_to_the_end(start_as_user, with_jobs(kind, 1, kind.command(case, alone)), log)
        if code:
            raise LostError(f"{case}, left alone, ended with {code}: {log.read_text()[-2000:]}")
        known.write_text(json.dumps(kind.result(alone)))
    return json.loads(known.read_text())


def hit_and_compare(
    kind: Kind, case: str, kills: int, rng: random.Random, place: Path, start: Start, hits: Counter[str]
) -> None:
    """Adds to `hits` what was hit, and where; raises LostError. `place` holds both folders."""
    expected = find_expected(kind, case, place)
    hit, log = place / "hit", place / "hit.log"
    kind.prepare(case, hit)
    while hits.total() < kills and hit_once(kind, case, rng, hit, log, start, hits):
        pass
    code = run_to_the_end(start, with_jobs(kind, 1, kind.command(case, hit)), log)
    if code:
        raise LostError(f"{case}, killed {hits.total()} times, ended with {code}: {log.read_text()[-2000:]}")
    found = json.loads(json.dumps(kind.result(hit)))
    if found != expected:
        raise LostError(f"{case}, killed {hits.total()} times, differs: {first_difference(found, expected)}")


def run_to_the_end(start: Start, argv: list[str], log: Path) -> int:
    process = start(argv, log)
    try:
        return wait_for(process, f"`fedptr {' '.join(argv)}`")
    finally:
        kill(process)


def hit_once(kind: Kind, case: str, rng: random.Random, hit: Path, log: Path, start: Start, hits: Counter[str]) -> bool:
    """Starts or continues a case and kills it; False if it got to its end before."""
    before, argv = files_below(hit), kind.command(case, hit)
    if kind.jobs and rng.random() < JOBS:
        process = start(with_jobs(kind, 2, argv), log)
        try:
            hits += kill_job_or_queue(process, hit, before, rng)
        finally:
            kill(process)
        return True
    as_user = rng.random() < AS_USER
    process = (start_as_user if as_user else start)(with_jobs(kind, 1, argv), log)
    try:
        wait_for_instant(process, hit, rng, kind.longest + 3 * as_user)
        ended = process.poll() is not None
    finally:
        kill(process)
    if not ended:
        hits[tell_place(hit, before)] += 1
    elif process.returncode:
        raise LostError(f"{case} ended with {process.returncode}: {log.read_text()[-2000:]}")
    return not ended


def with_jobs(kind: Kind, jobs: int, argv: list[str]) -> list[str]:
    return [*argv, "--jobs", str(jobs)] if kind.jobs else argv


def first_difference(found: object, expected: object, at: str = "") -> str:
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted(found.keys() | expected.keys()):
            if found.get(key) != expected.get(key):
                return first_difference(found.get(key), expected.get(key), f"{at}.{key}")
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            if a != b:
                return first_difference(a, b, f"{at}[{i}]")
    return f"{at} is {str(found)[:300]} instead of {str(expected)[:300]}"
