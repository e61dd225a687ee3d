"""Optuna's TPE chooses the next settings from the scores so far.

What it was told is in optuna.log (JSON lines), and a trial that was stopped is finished before the next one is asked
for. A suggestion depends on the seed, the trial's number and the scores before, so a sweep that was killed ends as one
that was not. Settings are asked for in batches of --jobs.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedptr.errors import UserError
from fedptr.messages import install_command
from fedptr.runs.same_run import fingerprint
from fedptr.sweep.axes import Range
from fedptr.sweep.outcome import Trial, TrialResult
from fedptr.sweep.run_sweep import SweepRunner
from fedptr.sweep.space import Settings, Space

if TYPE_CHECKING:
    import optuna

LOG = "optuna.log"


def check_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise UserError(f"--optuna needs Optuna: {install_command('optuna')}, or use --random N") from None


class HeldAlready:
    """A lock that does nothing: the sweep's folder is locked already, by a lock that the system releases."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        return


def open_study(space: Space, runner: SweepRunner) -> optuna.Study:
    """The study of this method, these ranges and these seeds; the file may hold others."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sweep = runner.sweep
    base = fingerprint(space.plan_at({}, sweep.first_seed))
    varied = {place: axis.describe() for place, axis in space.axes.items()}
    text = json.dumps([base, varied, sweep.first_seed, sweep.seeds, sweep.draw_seed], sort_keys=True)
    name = f"{space.method}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    path = runner.out / LOG
    remove_half_line(path)
    try:
        storage = JournalStorage(JournalFileBackend(str(path), lock_obj=HeldAlready()))  # type: ignore[arg-type]
        return optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); move it away, and the finished runs are used again") from None


def remove_half_line(path: Path) -> None:
    """A kill may leave the last line unfinished; Optuna would append to it."""
    if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
        path.write_bytes(content[: content.rfind(b"\n") + 1])


def search_space(space: Space, runner: SweepRunner) -> None:
    """Tries --optuna settings of a method; those that are in the study already are not asked for again."""
    import optuna

    study, wanted, jobs = open_study(space, runner), runner.sweep.optuna, runner.jobs
    distributions = make_distributions(space)
    while True:
        known = study.get_trials(deepcopy=False)
        asked = [trial for trial in known if trial.params.keys() == space.axes.keys()][:wanted]
        waiting = [trial.number for trial in asked if not trial.state.is_finished()]
        batch = -len(asked) % jobs if waiting else jobs  # a batch that was begun is made whole
        for number in range(len(known), len(known) + min(wanted - len(asked), batch)):
            study.sampler = optuna.samplers.TPESampler(seed=seed_of(runner.sweep.draw_seed, number))
            waiting.append(study.ask(distributions).number)
        runner.note(make_trials(space, study, [trial.number for trial in asked], runner))
        if not waiting:
            return
        trials = make_trials(space, study, waiting, runner)
        runner.run(trials)
        results = {id(result.trial): result for result in runner.collect(trials).results}
        for number, trial in zip(waiting, trials, strict=True):
            tell_score(study, number, results[id(trial)])


def make_trials(space: Space, study: optuna.Study, numbers: list[int], runner: SweepRunner) -> list[Trial]:
    known = study.get_trials(deepcopy=False)
    return runner.sweep.make_trials(space, [settle(space, known[number].params) for number in numbers], runner.out)


def tell_score(study: optuna.Study, number: int, result: TrialResult) -> None:
    import optuna

    if result.state == "failed":
        study.tell(number, state=optuna.trial.TrialState.FAIL)
    else:
        study.tell(number, result.score.mean)


def make_distributions(space: Space) -> dict[str, Any]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, Any] = {}
    for place, axis in space.axes.items():
        if not isinstance(axis, Range):
            found[place] = CategoricalDistribution(axis.values)
        elif axis.whole:
            found[place] = IntDistribution(int(axis.low), int(axis.high), log=axis.log)
        else:
            found[place] = FloatDistribution(axis.low, axis.high, log=axis.log)
    return found


def settle(space: Space, params: dict[str, Any]) -> Settings:
    """A trial's settings as a plan has them."""
    return {
        place: axis.settle(params[place]) if isinstance(axis, Range) else params[place]
        for place, axis in space.axes.items()
    }


def seed_of(seed: int, number: int) -> int:
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
