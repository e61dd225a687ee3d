"""What FedPTR did inside: matching losses, β, cosines, reach, distances to the projection; and learned images."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedptr.regular_files import read_bytes
from fedptr.report.find_runs import FoundRun
from fedptr.report.means_over_seeds import thin_positions, to_json_numbers
from fedptr.runs.auxiliary_pictures import FOLDER, ROWS
from fedptr.runs.rounds_file import Record
from fedptr.stats import number_or_nan

MOST_SHEETS = 25  # of one run
SMALL_SHEET = 30_000  # bytes; a larger sheet is compressed with loss
LARGEST_SIDE = 4000  # pixels along a side
SHEET_NAME = re.compile(r"round(\d{4,9})\.png")


def collect_diagnostics(run: FoundRun, layers: list[str] | None) -> dict[str, Any] | None:
    """Means by round over the clients, or the server, that recorded something; None if nobody did."""
    records = [run.records[i] for i in thin_positions(len(run.records))]
    columns = {
        name: [average_parts(record, name) for record in records] for name in ("match_before", "match_after", "beta")
    }
    columns |= {name: [number_or_nan(record.get(name)) for record in records] for name in ("cos_aux", "reach")}
    distances = [average_distances(record) for record in records]
    count = max(map(len, distances), default=0)
    if not count and not any(math.isfinite(value) for values in columns.values() for value in values):
        return None
    columns["cos_local"] = [number_or_nan(record.get("cos_local")) for record in records]
    names = layers if layers and len(layers) == count else [f"tensor {j + 1}" for j in range(count)]
    by_layer = [to_json_numbers([row[j] if j < len(row) else math.nan for row in distances]) for j in range(count)]
    return {
        "rounds": [record["round"] for record in records],
        **{name: to_json_numbers(values) for name, values in columns.items()},
        "layers": names,
        "distances": by_layer,
    }


def iterate_parts(record: Record) -> Iterator[Record]:
    for part in (record.get("server"), *record["clients"]):
        if isinstance(part, dict):
            yield part


def average_parts(record: Record, name: str) -> float:
    values = [value for part in iterate_parts(record) if math.isfinite(value := number_or_nan(part.get(name)))]
    return sum(values) / len(values) if values else math.nan


def average_distances(record: Record) -> list[float]:
    """The distance of every layer to its projection, averaged over the clients."""
    rows = [part["distances"] for part in iterate_parts(record) if isinstance(part.get("distances"), list)]
    if not rows or len({len(row) for row in rows}) > 1:
        return []
    return [sum(map(number_or_nan, column)) / len(rows) for column in zip(*rows, strict=True)]


def embed_sheets(run: FoundRun) -> list[dict[str, Any]]:
    """The saved pictures of learned images as data URIs; a file that is no picture is skipped."""
    found = sorted(
        (int(match[1]), path) for path in (run.files / FOLDER).glob("*") if (match := SHEET_NAME.fullmatch(path.name))
    )
    step = max(1, -(-len(found) // MOST_SHEETS))
    kept = found[::-1][::step][::-1]  # with the last one
    return [{"round": t, **picture} for t, path in kept if (picture := embed_image(path))]


def embed_image(path: Path) -> dict[str, Any] | None:
    from PIL import Image

    try:
        content, kind = read_bytes(path), "png"
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if max(image.size) > LARGEST_SIDE:
                return None
            image.load()
            size, owner, rows = image.size, *(str(image.info.get(name, "")) for name in ("owner", "rows"))
            if len(content) > SMALL_SHEET:
                packed = io.BytesIO()
                image.convert("RGB").save(packed, "WEBP", quality=85)
                content, kind = packed.getvalue(), "webp"
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # what Pillow raises for a damaged file
        return None
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return {"src": source, "owner": owner, "rows": rows.splitlines()[:ROWS], "width": size[0], "height": size[1]}
