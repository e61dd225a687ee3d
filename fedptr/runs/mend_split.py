"""The split of a run that is resumed: split.json is drawn again where it is lost or damaged."""

from __future__ import annotations

from pathlib import Path

from fedptr.data.split import Split
from fedptr.errors import UserError
from fedptr.messages import print_notice
from fedptr.runs.experiment import Experiment
from fedptr.runs.rounds_file import whole_lines


def mend_split(out: Path, experiment: Experiment) -> None:
    """The split is drawn again from the plan; a damaged file is put aside and written again."""
    path = out / "split.json"
    if not path.exists() and not whole_lines(out):  # nothing was begun yet
        experiment.split.save(path)
        return
    try:
        if Split.load(path).sha256 == experiment.split.sha256:
            return
        words = "split.json is of another split"
    except UserError as error:
        words = str(error)
    if path.exists():
        path.rename(path.with_name("split.json.damaged"))
    experiment.split.save(path)
    print_notice(f"{words}; it was drawn again from the plan")
