"""Whether `fedptr --help` imports torch, how long a tiny run takes, and how long a run waits for compiled code.

The latter is three runs of one round on digits, in turns: eager, compiled with an empty cache, and compiled with
a full one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench_results import Goal, Row, make_row
from run_python import run_python
from scale import Scale
from timing import Work, quartiles, ratios_by_turn, time_in_turns

HELP = ["-m", "fedptr", "--help"]
RUN = ["-m", "fedptr", "run", "--rounds", "1", "--subset", "200", "--min-size", "1", "--force"]
TINY = ["-m", "fedptr", "run", "--dataset", "digits", "--method", "fedavg", "--rounds", "1", "--force"]
MODELS = {
    "the ConvNet's C++": ["--model", "convnet", "--width", "32"],
    "torch.compile of a LeNet": ["--model", "lenet", "--dataset", "fashion-mnist"],
}


def measure_rows(scale: Scale) -> Iterator[Row]:
    imported = {line.rpartition("|")[2].strip() for line in run_python("-X", "importtime", *HELP)[1].splitlines()}
    yield make_row("fedptr --help: imports of torch", "none", [float("torch" in imported)], "", Goal("=", 0))
    times = time_in_turns({"help": lambda: run_python(*HELP), "pass": lambda: run_python("-c", "pass")}, scale.repeats)
    yield make_row("fedptr --help: time", "python -c pass", ratios_by_turn(times, "help", "pass"), times=times)
    with tempfile.TemporaryDirectory() as folder:
        tiny = [*TINY, "--out", str(Path(folder) / "tiny")]
        works: dict[str, Work] = {"run": lambda: run_python(*tiny), "import": lambda: run_python("-c", "import torch")}
        times = time_in_turns(works, scale.repeats)
    tiny_run = "fedptr run of one round on digits, from the shell"
    yield make_row(tiny_run, "import torch", ratios_by_turn(times, "run", "import"), "", Goal("≤", 1.5), times=times)
    for name, model in list(MODELS.items())[: 1 if scale.quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            times = time_in_turns(start_works(model, Path(folder)), 1 if scale.quick else 3)
        took = ", ".join(f"{kind} {quartiles(times[kind]).median:.1f} s" for kind in ("eager", "cold", "warm"))
        for kind, words in (("cold", "with an empty cache"), ("warm", "from the cache")):
            title = f"a run of one round, {name} {words}"
            yield make_row(title, "the same run, eager", ratios_by_turn(times, kind, "eager"), times=times, note=took)


def start_works(model: list[str], folder: Path) -> dict[str, Work]:
    def once(when: str, cache: str) -> None:
        out = ["--compile", when, "--out", str(folder / "out")]
        run_python(*RUN, *model, *out, XDG_CACHE_HOME=cache, TORCHINDUCTOR_CACHE_DIR=str(Path(cache) / "inductor"))

    def cold() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as empty:
            once("on", empty)

    full = str(folder / "full")
    return {"eager": lambda: once("off", full), "cold": cold, "warm": lambda: once("on", full)}
