"""What the repository carries of results stays small: tables, figures, plans, and the runs in archives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_results_are_few_files_and_small() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    listed = subprocess.run(["git", "ls-files", "-z", "results"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert 0 < len(files) <= 150
    assert sum(path.stat().st_size for path in files) < 13e6
