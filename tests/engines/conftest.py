"""What tests of engines share."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedptr.core.federation import Run


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Every round's model, as the served run makes it."""
    serving = pytest.importorskip("fedptr.engines.flower.server.deployed_run", reason="fedptr[flower] is not installed")
    found: list[torch.Tensor] = []
    original = serving.next_round_that_counts

    def counted(*args: Any) -> Run:
        run = original(*args)
        found.append(run.w)
        return run

    monkeypatch.setattr(serving, "next_round_that_counts", counted)
    return found
