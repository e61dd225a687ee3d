"""Runs plans: each has a run folder of its own, so that whatever was finished or saved survives any kill.

One job at a time runs in this process. With more, every run is a process of its own (`job.py`), which saves itself
as any run does; this one only starts them and looks at how far their rounds.jsonl is.
"""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedptr.atomic_files import DamagedFileError, write_text
from fedptr.compute.choose import count_gradients
from fedptr.core.early_stopping import has_enough_rounds
from fedptr.data.sources import SIZES
from fedptr.errors import ClientError, UserError
from fedptr.messages import last_line, print_notice
from fedptr.runs.extend import can_be_continued, would_lose_progress
from fedptr.runs.folder import CHECKPOINTS, rename_aside
from fedptr.runs.lock import StoppedError, defer_signals, locked
from fedptr.runs.plan import Plan, load_plan, with_rounds
from fedptr.runs.rounds_file import Record, whole_lines
from fedptr.runs.runner import Engine, in_process, resume_run
from fedptr.runs.same_run import lineage
from fedptr.runs.summary import read_finished, read_once_finished

LOOK = 0.5  # seconds between two looks at the jobs
LOG = "log.txt"
SAME_COMMAND = "run the same command to continue"


@dataclass
class QueueState:
    """What is known of every run folder; several cells may share one."""

    plans: dict[Path, Plan]
    done: dict[Path, tuple[Record, list[Record]]] = field(default_factory=dict)
    shorter: dict[Path, tuple[Record, list[Record]]] = field(default_factory=dict)  # finished, but to be continued
    failed: dict[Path, str] = field(default_factory=dict)
    running: dict[Path, int] = field(default_factory=dict)  # -> rounds so far
    began: float = field(default_factory=time.perf_counter)
    found: float = 0.0  # work that was there already when we began
    stopped: int = 0  # by this signal
    keep: bool = True  # a finished run's checkpoint, from which a plan of more rounds continues
    recompute: bool = False  # runs continue even if they are computed another way than they were

    @property
    def runs(self) -> dict[Path, tuple[Record, list[Record]]]:
        """All that can be read, each as far as it is finished."""
        return self.shorter | self.done

    @property
    def work(self) -> tuple[float, float]:
        """Done and altogether, in image gradients."""
        total = sum(count_work(plan) for folder, plan in self.plans.items() if folder not in self.failed)
        done = sum(count_work(self.plans[folder]) for folder in self.done)
        return done + sum(map(self.part, self.running)), total

    def part(self, folder: Path) -> float:
        """What is done of a run that is going on."""
        plan = self.plans[folder]
        return count_work(plan) * self.running[folder] / plan.run.rounds

    @property
    def left(self) -> float | None:
        """Seconds, from the speed so far."""
        done, total = self.work
        new = done - self.found
        return (total - done) * (time.perf_counter() - self.began) / new if new > 0 else None


def name_run_folder(plan: Plan, out: Path, digest: str) -> Path:
    """The folder of a plan's run among many; those with the same digest and seed share it."""
    return out / "runs" / f"{plan.method.name}-{Path(plan.data.name).stem}-{digest}" / f"seed{plan.run.seed}"


def longest_plans(wanted: Iterable[tuple[Path, Plan]]) -> dict[Path, Plan]:
    """The plan to run in each folder: of those that share it, the one with the most rounds."""
    plans: dict[Path, Plan] = {}
    for folder, plan in wanted:
        if folder not in plans or plan.run.rounds > plans[folder].run.rounds:
            plans[folder] = plan
    return plans


def count_work(plan: Plan) -> float:
    """What a run costs, in gradients of one image: a measure of time that needs no model."""
    classes, each = SIZES.get(plan.data.name, SIZES["cifar10"])
    return count_gradients(plan, classes, plan.data.subset or classes * each)


def run_plans(
    plans: Mapping[Path, Plan],
    jobs: int,
    show: Callable[[QueueState], None],
    keep: bool = True,
    engine: Engine = in_process,
    recompute: bool = False,
) -> QueueState:
    """Runs what is not finished, until it is asked to stop. A run that fails does not stop the others."""
    board = QueueState(dict(plans), keep=keep, recompute=recompute)
    waiting = collections.deque(folder for folder, plan in plans.items() if not note_finished(board, folder, plan))
    board.found, board.began = board.work[0], time.perf_counter()  # reading the finished ones does not count
    show(board)
    with defer_signals(SAME_COMMAND) as stop:
        try:
            if jobs == 1:
                while waiting and not stop.number:
                    run_here(board, waiting.popleft(), show, engine)
            else:
                run_as_processes(board, waiting, jobs, show, lambda: stop.number)
        except StoppedError as stopped:  # a run in this process heard the signal first
            stop.number = stopped.signal_number
        except KeyboardInterrupt:
            raise KeyboardInterrupt(SAME_COMMAND) from None
        board.stopped = stop.number
    return board


def find_finished_runs(plans: Mapping[Path, Plan]) -> QueueState:
    """What is finished already."""
    board = QueueState(dict(plans))
    for folder, plan in plans.items():
        note_finished(board, folder, plan)
    board.found = board.work[0]
    return board


def note_finished(board: QueueState, folder: Path, plan: Plan) -> bool:
    """Whether it is finished, with at least the rounds asked for, or early; rounds beyond do not matter.

    A plan that cannot be read is none; one that is not ours is refused.
    """
    try:
        there = load_plan(folder)
    except UserError:
        return False
    if (lineage(there), there.run.seed) != (lineage(plan), plan.run.seed):
        raise UserError(
            f"{folder} was run by another plan than is asked for now; move it away, or choose another folder"
        )
    with contextlib.suppress(DamagedFileError):
        done = read_once_finished(folder, there)  # it may be getting longer now, or have been stopped while at it
        enough = has_enough_rounds(done[0], plan.run.rounds)
        (board.done if enough else board.shorter)[folder] = done
        if enough:
            return True
    if there.run.rounds > plan.run.rounds:  # begun for another recipe: what is begun is brought to its end
        board.plans[folder] = with_rounds(plan, there.run.rounds)
    return False


def begin_run(board: QueueState, folder: Path) -> None:
    """A folder that `resume` can take up; the rounds it has are not taken for new ones."""
    plan = board.plans[folder]
    put_aside(folder, plan)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "plan.toml").exists():
        write_text(folder / "plan.toml", plan.toml())
    board.running[folder] = len(whole_lines(folder))
    board.found += board.part(folder)


def put_aside(folder: Path, plan: Plan) -> None:
    """A run that is damaged or too short, and has no sound checkpoint, can neither be used nor resumed."""
    if not would_lose_progress(folder, plan.run.checkpoint_every):
        return
    with locked(folder):  # while another process writes, its checkpoints come and go
        if can_be_continued(folder):
            return
        with contextlib.suppress(DamagedFileError):
            rounds = read_once_finished(folder, plan)[0]["rounds"]
            aside = rename_aside(folder, "shorter")
            words = f"has {rounds} rounds and no checkpoint, so its {plan.run.rounds} are run from the start"
            print_notice(f"{folder} {words}; what it held is in {aside.name}")
            return
        aside = rename_aside(folder, "damaged")
        print_notice(f"{folder} is damaged, and is run again; what it held is in {aside.name}")


def keep_result(board: QueueState, folder: Path, result: tuple[Record, list[Record]]) -> None:
    board.done[folder] = result
    if not board.keep:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def run_here(board: QueueState, folder: Path, show: Callable[[QueueState], None], engine: Engine) -> None:
    def count(record: Record) -> None:
        board.running[folder] = record["round"]
        show(board)

    board.running[folder] = 0
    try:
        begin_run(board, folder)
        rounds = board.plans[folder].run.rounds
        begun = load_plan(folder)
        keep_result(board, folder, resume_run(begun, folder, count, engine, rounds, board.recompute))
    except (ClientError, UserError) as error:
        board.failed[folder] = str(error)
    finally:
        board.running.pop(folder)
    show(board)


def run_as_processes(
    board: QueueState,
    waiting: collections.deque[Path],
    jobs: int,
    show: Callable[[QueueState], None],
    stopped: Callable[[], int],
) -> None:
    active: dict[Path, subprocess.Popen[bytes]] = {}
    asked = False
    with kill_jobs_at_exit(active):
        while active or (waiting and not stopped()):
            while waiting and len(active) < jobs and not stopped():
                folder = waiting.popleft()
                try:
                    begin_run(board, folder)
                except UserError as error:
                    board.failed[folder] = str(error)
                    continue
                active[folder] = start_job(folder, board.plans[folder].run.rounds, board.recompute)
            if stopped() and not asked:
                asked = True
                for process in active.values():
                    process.send_signal(signal.SIGTERM)
            for folder, process in list(active.items()):
                board.running[folder] = len(whole_lines(folder))
                if process.poll() is None:
                    continue
                del active[folder], board.running[folder]
                if done := read_if_finished(folder, process.returncode, board.plans[folder]):
                    keep_result(board, folder, done)
                elif not stopped():
                    board.failed[folder] = last_line(folder / LOG).removeprefix("fedptr: ") or "it ended without a word"
            show(board)
            time.sleep(LOOK)


def read_if_finished(folder: Path, code: int, plan: Plan) -> tuple[Record, list[Record]] | None:
    """The result of a job that has ended; one that diverged is finished too, though its exit code is 1."""
    if code == 0:
        return read_finished(folder)
    with contextlib.suppress(DamagedFileError):
        done = read_finished(folder)
        return done if code == 1 and done[0]["rounds"] >= plan.run.rounds else None
    return None


@contextlib.contextmanager
def kill_jobs_at_exit(active: dict[Path, subprocess.Popen[bytes]]) -> Iterator[None]:
    """Whatever ends us, the jobs do not live on."""
    try:
        yield
    finally:
        for process in active.values():
            process.kill()


def start_job(folder: Path, rounds: int, recompute: bool) -> subprocess.Popen[bytes]:
    with open(folder / LOG, "wb") as log:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fedptr.jobs.run_job",
                str(os.getpid()),
                "resume",
                str(folder),
                "--rounds",
                str(rounds),
                *(["--recompute"] if recompute else []),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C is ours to pass on
        )
