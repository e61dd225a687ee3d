"""The rules of benchmarks/oracle.py, which prints the table in docs/oracle.md; it is a program, not in a package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

spec = importlib.util.spec_from_file_location("oracle_rules", Path(__file__).parents[2] / "benchmarks" / "oracle.py")
assert spec is not None
assert spec.loader is not None
rules = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = rules  # where dataclasses look for the types of fields
spec.loader.exec_module(rules)
