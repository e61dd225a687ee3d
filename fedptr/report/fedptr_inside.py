"""What FedPTR did inside: matching losses, β, cosines, reach, distances to the projection, and the auxiliary images."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedptr.report.find_runs import Found
from fedptr.report.series import plain, thin
from fedptr.runs.auxiliary_pictures import FOLDER
from fedptr.runs.rounds_file import Record
from fedptr.stats import number_or_nan

SHEETS = 25  # of a run, at most
SMALL = 30_000  # bytes of a sheet that is kept as it is; a larger one is compressed with loss
LARGEST = 4000  # pixels along a side
NAME = re.compile(r"round(\d{4,9})\.png")


def view(run: Found, layers: list[str] | None) -> dict[str, Any] | None:
    """By round, means over the clients (or the server) that recorded something; None where nobody did."""
    records = [run.records[i] for i in thin(len(run.records))]
    columns = {name: [mean(record, name) for record in records] for name in ("match_before", "match_after", "beta")}
    columns |= {name: [number_or_nan(record.get(name)) for record in records] for name in ("cos_aux", "reach")}
    distances = [mean_distances(record) for record in records]
    count = max(map(len, distances), default=0)
    if not count and not any(math.isfinite(value) for values in columns.values() for value in values):
        return None
    columns["cos_local"] = [number_or_nan(record.get("cos_local")) for record in records]
    names = layers if layers and len(layers) == count else [f"tensor {j + 1}" for j in range(count)]
    by_layer = [plain([row[j] if j < len(row) else math.nan for row in distances]) for j in range(count)]
    return {
        "rounds": [record["round"] for record in records],
        **{name: plain(values) for name, values in columns.items()},
        "layers": names,
        "distances": by_layer,
    }


def parts(record: Record) -> Iterator[Record]:
    for part in (record.get("server"), *record["clients"]):
        if isinstance(part, dict):
            yield part


def mean(record: Record, name: str) -> float:
    values = [value for part in parts(record) if math.isfinite(value := number_or_nan(part.get(name)))]
    return sum(values) / len(values) if values else math.nan


def mean_distances(record: Record) -> list[float]:
    """Of every layer to its projection, over the clients."""
    rows = [part["distances"] for part in parts(record) if isinstance(part.get("distances"), list)]
    if not rows or len({len(row) for row in rows}) > 1:
        return []
    return [sum(map(number_or_nan, column)) / len(rows) for column in zip(*rows, strict=True)]


def sheets(run: Found) -> list[dict[str, Any]]:
    """The saved auxiliary images, as data URIs; one that is no picture is passed over."""
    found = sorted(
        (int(match[1]), path) for path in (run.files / FOLDER).glob("*") if (match := NAME.fullmatch(path.name))
    )
    step = max(1, -(-len(found) // SHEETS))
    kept = found[::-1][::step][::-1]  # with the last one
    return [{"round": t, **picture} for t, path in kept if (picture := embedded(path))]


def embedded(path: Path) -> dict[str, Any] | None:
    from PIL import Image

    try:
        content, kind = path.read_bytes(), "png"
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if max(image.size) > LARGEST:
                return None
            image.load()
            size, owner = image.size, str(image.info.get("owner", ""))
            if len(content) > SMALL:
                packed = io.BytesIO()
                image.convert("RGB").save(packed, "WEBP", quality=85)
                content, kind = packed.getvalue(), "webp"
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # Pillow's words for a damaged file
        return None
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return {"src": source, "owner": owner, "width": size[0], "height": size[1]}
