"""What every test has: one thread, and the small world."""

from __future__ import annotations

import pytest
import torch
from small_world import World

torch.set_num_threads(1)  # tests run side by side, and one thread is what bit-for-bit is promised for


@pytest.fixture(scope="session")
def world() -> World:
    return World()
