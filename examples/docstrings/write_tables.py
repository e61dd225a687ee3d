"""Texts that everybody has: which package is a docstring from? Writes docstrings/train.csv and docstrings/test.csv.

The five packages are installed with fedptr. Of every docstring the first words are taken, without the names of the
packages, which would give them away. Nothing is imported: the sources are only parsed.
"""

from __future__ import annotations

import ast
import csv
import importlib.util
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("numpy", "scipy", "sklearn", "matplotlib", "torch")
EACH, WORDS, FEWEST = 600, 60, 8  # docstrings of a package, and how many words they have
GIVEAWAYS = re.compile(r"\b(numpy|np|scipy|sklearn|scikit|matplotlib|plt|pyplot|torch|pytorch)\b", re.IGNORECASE)


def docstrings(package: str) -> Iterator[str]:
    """The docstrings of a package's classes and functions, each once."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    seen = set()
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        if "test" in str(path.relative_to(Path(spec.origin).parent)):
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                words = GIVEAWAYS.sub(" ", text).split()[:WORDS]
                line = " ".join(words)
                if len(words) >= FEWEST and line not in seen:
                    seen.add(line)
                    yield line


def main(folder: Path) -> None:
    rows = []
    for package in PACKAGES:
        found = sorted(docstrings(package), key=lambda text: zlib.crc32(text.encode()))[:EACH]
        rows += [(text, package) for text in found]
    folder.mkdir(exist_ok=True)
    for part in ("train", "test"):
        with open(folder / f"{part}.csv", "w", newline="") as file:
            out = csv.writer(file)
            out.writerow(("text", "label"))
            out.writerows(row for k, row in enumerate(rows) if (k % 5 == 0) == (part == "test"))
    print(f"{len(rows)} docstrings of {len(PACKAGES)} packages in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docstrings"))
