"""What tests of sweeps share."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fedptr.jobs import run_queue


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each run was started or continued."""
    starts: Counter[str] = Counter()
    run = run_queue.resume_run

    def count(plan: Any, folder: Path, *rest: Any) -> Any:
        starts["/".join(folder.parts[-2:])] += 1
        return run(plan, folder, *rest)

    monkeypatch.setattr(run_queue, "resume_run", count)
    return starts
