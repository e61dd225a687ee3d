"""Local training: how near to the machine's limit, and how far ahead of the usual loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from ours import ours, train
from references import plain_local_training
from results import Goal, Row, row
from scale import Scale
from separate_process import Apart
from timing import PRODUCTS, SIDE, interleaved, ratios, spread
from torch.utils.data import TensorDataset
from work import forward_flops, network, photos

from fedptr.core.samples import Samples

NOTE = "operations of convolutions and the linear layer, three times the forward pass's"


def plain(width: int, n: int, batch: int) -> Callable[[], object]:
    model, data = network(width), TensorDataset(*photos(n))

    def work() -> None:
        plain_local_training(model, data, batch)

    return work


def figures(scale: Scale) -> Iterator[Row]:
    n = scale(1000)
    data = Samples(*photos(n))
    for width in (scale(128), scale(32)):
        task = ours(width)
        for batch in (scale(500), scale(100)):
            name = f"local training, width {width}, batch {batch}"
            with contextlib.closing(Apart(plain, width, n, batch)) as reference:
                times = interleaved({"ours": partial(train, task, data, batch), "plain": reference}, scale.repeats)
            if width == scale(128):
                work = 3 * n * forward_flops(network(width)) / (PRODUCTS * 2 * SIDE**3)  # in calibrations
                part = [100 * work * ratio for ratio in ratios(times, "gemm", "ours")]
                yield row(name, "float32 GEMM, FLOP/s", part, "%", Goal("≥", 75), times, NOTE)
            mine, theirs = (n / spread(times[who]).median for who in ("ours", "plain"))
            speed = f"{mine:.0f} against {theirs:.0f} images/s"
            yield row(name, "plain eager loop", ratios(times, "plain", "ours"), "×", Goal("≥", 2.3), times, speed)
