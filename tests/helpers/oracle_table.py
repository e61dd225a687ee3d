"""The rules of benchmarks/oracle.py, which prints the table in docs/oracle.md; it is a program, not in a package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

spec = importlib.util.spec_from_file_location("oracle_rules", Path(__file__).parents[2] / "benchmarks" / "oracle.py")
assert spec is not None
assert spec.loader is not None
rules = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rules)
