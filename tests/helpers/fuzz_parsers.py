"""`make fuzz ARGS="--target pickle --runs 1000000"`: looks for bytes that a parser does not expect.

Atheris sees which branches of fedptr the bytes reach, and changes the seeds to reach more. What it makes is kept in
build/fuzz/NAME, and what crashes beside it; put that into tests/fuzz/corpus/NAME, where `make test` replays it.
Without a target all are fuzzed, one after another.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path

import atheris

CORPUS = Path(__file__).parent.parent / "fuzz" / "corpus"
MEMORY, SECONDS, LENGTH = 2048, 60, 2048  # MB, of one input, and bytes
LIBRARIES = ["zipfile", "tomllib", "numpy.lib", "PIL"]  # parsers written in Python


def fuzz_parser(name: str, runs: int, seconds: int) -> None:
    """Ends the process; with 0 if all bytes were taken, or refused as they should be."""
    from fuzz_targets import TARGETS

    for seed in sorted((CORPUS / name).iterdir()):  # imports what is imported late, while imports are instrumented
        TARGETS[name](seed.read_bytes())
    made = Path("build/fuzz") / name
    made.mkdir(parents=True, exist_ok=True)
    limits = [f"-runs={runs}", f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY}", f"-timeout={SECONDS}"]
    files = [f"-artifact_prefix={made.parent}/{name}-", str(made), str(CORPUS / name)]
    atheris.Setup([sys.argv[0], *limits, f"-max_len={LENGTH}", "-print_final_stats=1", *files], TARGETS[name])
    atheris.Fuzz()


def fuzz_all(names: list[str], options: list[str]) -> int:
    """Each in a process of its own; prints a line for each, and returns how many failed."""
    failed = 0
    for name in names:
        start = time.monotonic()
        command = [sys.executable, __file__, "--target", name, *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        found = re.search(r"number_of_executed_units: (\d+)", done.stdout)
        print(
            f"{name:20} {int(found[1]) if found else 0:>9} executions in {time.monotonic() - start:.0f} s", flush=True
        )
        if done.returncode:
            failed += 1
            print(done.stdout[-3000:])
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(path.name for path in CORPUS.iterdir())
    parser.add_argument("--target", choices=names)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=0, help="stop after these; 0 = no limit")
    args = parser.parse_args()
    if not args.target:
        sys.exit(fuzz_all(names, ["--runs", str(args.runs), "--seconds", str(args.seconds)]))
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch  # noqa: F401 (not instrumented)

    for instruction in pickle._Unpickler.dispatch.values():
        atheris.instrument_func(instruction)
    with atheris.instrument_imports(include=["fedptr", *LIBRARIES]):
        fuzz_parser(args.target, args.runs, args.seconds)


if __name__ == "__main__":
    main()
