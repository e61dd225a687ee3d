"""Runs Python in another process, for benchmarks of whole commands."""

from __future__ import annotations

import os
import subprocess
import sys


def run_python(*arguments: str, **variables: str) -> tuple[str, str]:
    """What it printed to stdout and to stderr; if it fails, its last words are the error."""
    command, env = [sys.executable, *arguments], {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return done.stdout, done.stderr
