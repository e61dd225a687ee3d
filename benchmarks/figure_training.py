"""Local training: how close it is to the machine's limit, and how far ahead of the usual loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from bench_results import Goal, Row, make_row
from our_side import make_fast_task, train_client
from plain_references import train_plain_loop
from scale import Scale
from separate_process import SeparateProcess
from timing import PRODUCTS, SIDE, quartiles, ratios_by_turn, time_in_turns
from torch.utils.data import TensorDataset
from workload import count_forward_flops, make_images, make_network

from fedptr.core.samples import Samples

NOTE = "operations of convolutions and the linear layer, three times the forward pass's"


def plain_training_work(width: int, n: int, batch: int) -> Callable[[], object]:
    model, data = make_network(width), TensorDataset(*make_images(n))

    def work() -> None:
        train_plain_loop(model, data, batch)

    return work


def measure_rows(scale: Scale) -> Iterator[Row]:
    n = scale(1000)
    data = Samples(*make_images(n))
    for width in (scale(128), scale(32)):
        task = make_fast_task(width)
        for batch in (scale(500), scale(100)):
            name = f"local training, width {width}, batch {batch}"
            with contextlib.closing(SeparateProcess(plain_training_work, width, n, batch)) as reference:
                times = time_in_turns(
                    {"ours": partial(train_client, task, data, batch), "plain": reference}, scale.repeats
                )
            if width == scale(128):
                work = 3 * n * count_forward_flops(make_network(width)) / (PRODUCTS * 2 * SIDE**3)  # in calibrations
                part = [100 * work * ratio for ratio in ratios_by_turn(times, "gemm", "ours")]
                yield make_row(name, "float32 GEMM, FLOP/s", part, "%", Goal("≥", 75), times, NOTE)
            mine, theirs = (n / quartiles(times[who]).median for who in ("ours", "plain"))
            speed = f"{mine:.0f} against {theirs:.0f} images/s"
            yield make_row(
                name, "plain eager loop", ratios_by_turn(times, "plain", "ours"), "×", Goal("≥", 2.3), times, speed
            )
