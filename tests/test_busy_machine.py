"""No test depends on how fast the machine is."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import HealthCheck, settings

CLOCKS = re.compile(r"\b(perf_counter|monotonic|process_time|time\.time)\(")


def test_examples_of_hypothesis_have_no_deadline() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check


def test_only_helpers_look_at_a_clock() -> None:
    tests = Path(__file__).parent
    files = [path for path in tests.rglob("*.py") if "helpers" not in path.parts]
    assert len(files) > 50
    assert [str(path.relative_to(tests)) for path in files if CLOCKS.search(path.read_text(encoding="utf-8"))] == []
