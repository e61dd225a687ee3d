"""Seeds, and all bytes with which `make fuzz` has ever found a fault, are taken or refused as the parser declares."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz_targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
NEED_FLOWER = ("keys", "masked_numbers", "message", "parcel", "register", "status")


@pytest.mark.parametrize("name", TARGETS)
def test_replay(name: str) -> None:
    if name in NEED_FLOWER:
        pytest.importorskip("flwr", reason="Flower is not installed")
    seeds = sorted((CORPUS / name).iterdir())
    assert seeds, "a target needs a seed"
    for seed in seeds:
        TARGETS[name](seed.read_bytes())


def test_the_corpus_is_small_and_has_no_other_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    assert sum(path.stat().st_size for path in CORPUS.rglob("*")) < 200_000
