"""What all tests of audits have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The cache of datasets is the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDPTR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
