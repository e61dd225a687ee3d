"""TensorBoard, MLflow and Weights & Biases: the numbers of every round, fed from the records of rounds.jsonl.

`--tensorboard` makes the folder DIR/tensorboard, `--mlflow` the folder DIR/mlflow, `--wandb` the folder DIR/wandb. That
the folder is there is all that is remembered, so a run that is resumed continues with its trackers. A comparison has
one folder for all its runs.

rounds.jsonl is the source. TensorBoard's files, and those of Weights & Biases, are written again from it when a run is
resumed; a server elsewhere (MLFLOW_TRACKING_URI, or WANDB_MODE=online) gets the rounds it does not have. A tracker that
fails does not stop a run.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fedptr.errors import UserError
from fedptr.messages import install_command, print_notice
from fedptr.runs.rounds_file import Record

COMPARISON = "compare.toml"  # in the folder of a comparison, two above the folders of its runs
RUN_ID, WANDB_ID = "mlflow_run.txt", "wandb_run.txt"


class Tracker(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self, complete: bool) -> None: ...


class TensorBoard:
    def __init__(self, store: Path, label: str, out: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        for old in (store / label).glob("events.out.tfevents.*"):
            old.unlink()
        self.writer = SummaryWriter(str(store / label))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self, complete: bool) -> None:
        self.writer.close()


class MLflow:
    """One run in the experiment "fedptr"; its number is kept in the run folder."""

    def __init__(self, store: Path, label: str, out: Path) -> None:
        # The file store is what a folder can hold, and MLflow wants it to be asked for. Runs here do not call home.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient

        self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or store.resolve().as_uri())
        path = out / RUN_ID
        if path.exists():
            self.run = path.read_text(encoding="utf-8").strip()
            self.client.update_run(self.run, status="RUNNING")
        else:
            found = self.client.get_experiment_by_name("fedptr")
            experiment = found.experiment_id if found else self.client.create_experiment("fedptr")
            self.run = self.client.create_run(experiment, run_name=label if label != "." else out.name).info.run_id
            path.write_text(self.run + "\n", encoding="utf-8")
            params = plan_parameters(out)
            for k in range(0, len(params), 100):  # more at once are refused
                self.client.log_batch(self.run, params=params[k : k + 100])
        known = self.client.get_run(self.run).data.metrics
        self.last = {name: max(m.step for m in self.client.get_metric_history(self.run, name)) for name in known}

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        new = [Metric(name, value, now, step) for name, value in values.items() if step > self.last.get(name, 0)]
        self.client.log_batch(self.run, metrics=new)

    def close(self, complete: bool) -> None:
        self.client.set_terminated(self.run, "FINISHED" if complete else "KILLED")


class WeightsAndBiases:
    """One run of the project "fedptr"; its id is kept in the run folder. Without WANDB_MODE, nothing leaves the folder.

    Of the machine nothing is noted: no code, packages, commands or usage. Who is logged in is wandb's own business.
    """

    def __init__(self, store: Path, label: str, out: Path) -> None:
        import wandb

        path = out / WANDB_ID
        number = path.read_text(encoding="utf-8").strip() if path.exists() else ""
        if not number.isalnum():  # also where a kill left half of it
            number = secrets.token_hex(4)
            path.write_text(number + "\n", encoding="utf-8")
        for old in store.glob(f"offline-run-*-{number}"):
            shutil.rmtree(old)
        told = wandb.Settings(
            silent=True, console="off", symlink=False, disable_git=True, disable_code=True, x_save_requirements=False,
            x_disable_meta=True, x_disable_stats=True,
        )  # fmt: skip
        self.run = wandb.init(
            project="fedptr", id=number, resume="allow", name=label if label != "." else out.name, settings=told,
            dir=str(store.parent), mode=os.environ.get("WANDB_MODE") or "offline", config=plan_settings(out),
        )  # fmt: skip
        self.store = store
        self.first = self.run.starting_step  # of a run that a server has the beginning of

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step >= self.first:
            self.run.log(dict(values), step=step)
        self.remove_links()

    def close(self, complete: bool) -> None:
        self.run.finish(exit_code=0 if complete else 1)
        self.remove_links()

    def remove_links(self) -> None:
        """A link to wandb's own log would look like a file of somebody else's."""
        for path in self.store.glob("*/logs/*"):
            if path.is_symlink():
                path.unlink(missing_ok=True)


def plan_parameters(out: Path) -> list[Any]:
    """Every setting of the run's plan, as MLflow takes them."""
    from mlflow.entities import Param

    return [Param(place, str(value)) for place, value in plan_settings(out).items()]


def plan_settings(out: Path) -> dict[str, Any]:
    """Every setting of the run's plan, by section.key."""
    tables = tomllib.loads((out / "plan.toml").read_text(encoding="utf-8"))
    return {f"{section}.{key}": value for section, t in tables.items() for key, value in t.items()}


KINDS: dict[str, Callable[[Path, str, Path], Tracker]] = {
    "tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases,
}  # fmt: skip


def check_trackers(names: Sequence[str]) -> None:
    """Whether the packages are there, before anything runs."""
    for name in names:
        try:
            if name == "tensorboard":
                import torch.utils.tensorboard  # noqa: F401
            elif name == "mlflow":
                from mlflow import MlflowClient  # noqa: F401
            else:
                import wandb  # noqa: F401
        except ImportError:
            words = f"needs a package that is not here; install it with: {install_command(name)}"
            raise UserError(f"--{name} {words}") from None


def mark_trackers(out: Path, names: Sequence[str]) -> None:
    """From now on the runs in this folder have these trackers."""
    for name in names:
        (out / name).mkdir(exist_ok=True)


def find_trackers(out: Path) -> Iterator[tuple[str, Path, str]]:
    """The trackers of a run's folder: name, store, and the run's label in it."""
    above = out.resolve().parents
    roots = [out.resolve(), *([above[1]] if len(above) > 1 and (above[1] / COMPARISON).exists() else [])]
    for root in roots:
        for name in KINDS:
            if (root / name).is_dir():
                yield name, root / name, str(out.resolve().relative_to(root))


@contextlib.contextmanager
def track_rounds(out: Path, records: Sequence[Record]) -> Iterator[Callable[[Record], None]]:
    """Yields the function to call with every new record; those there are already come first."""
    trackers: dict[str, Tracker] = {}

    def start(name: str, store: Path, label: str) -> None:
        trackers[name] = KINDS[name](store, label, out)

    def each(act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(trackers.items()):
            attempt(name, lambda: act(tracker))  # noqa: B023 (called at once)

    def attempt(name: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # a full disk, a server that went away: foreign code fails in its own ways
            trackers.pop(name, None)
            print_notice(f"{name} gets no more of {out} ({' '.join(str(error).split())}); rounds.jsonl has everything")

    def feed(record: Record) -> None:
        each(lambda tracker: tracker.log(record["round"], record_scalars(record)))

    for name, store, label in find_trackers(out):
        check_trackers([name])
        attempt(name, partial(start, name, store, label))
    for record in records:
        feed(record)
    try:
        yield feed
    except BaseException:
        each(lambda tracker: tracker.close(False))
        raise
    each(lambda tracker: tracker.close(True))


def record_scalars(record: Record) -> dict[str, float]:
    """A record's numbers under one name each; of the clients', the mean.

    >>> clients = [{"id": 1, "beta": 1}, {"id": 2, "beta": 2}]
    >>> record_scalars({"round": 3, "loss": 0.5, "cohort": [1, 2], "clients": clients})
    {'loss': 0.5, 'cohort': 2.0, 'clients/beta': 1.5}
    """
    found: dict[str, float] = {}
    for name, value in record.items():
        if name == "clients":
            keys = dict.fromkeys(key for client in value for key in client if key != "id")
            for key in keys:
                numbers = [number for client in value if (number := finite_or_none(client.get(key))) is not None]
                if numbers:
                    found[f"clients/{key}"] = sum(numbers) / len(numbers)
        elif name in ("cohort", "dropped", "entries_left_out"):
            found[name] = float(len(value))
        elif name != "round":
            inner = {f"{name}/{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
            found |= {key: number for key, item in inner.items() if (number := finite_or_none(item)) is not None}
    return found


def finite_or_none(value: Any) -> float | None:
    """A number, or None for everything that is no point of a curve."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
