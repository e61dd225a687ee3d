"""Tables in .parquet files, read by pyarrow (`pip install 'fedptr[parquet]'`): columns of numbers and of text.

Nothing is unpickled: pandas' own metadata is not looked at, and columns of any other type are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np

from fedptr.data.dataset import Array
from fedptr.errors import UserError
from fedptr.messages import install_command
from fedptr.regular_files import TEXT, open_regular

LARGEST = 4 * TEXT  # bytes of the unpacked columns, as the file announces them
MOST_ROWS = 100_000_000


def read_parquet(path: Path, most_columns: int) -> tuple[list[str], list[list[str] | Array]]:
    """The names of the columns, and each as numbers or as texts."""
    with open_regular(path) as file:
        return parse_parquet(file, path, most_columns)


def parse_parquet(opened: IO[bytes], path: Path, most_columns: int) -> tuple[list[str], list[list[str] | Array]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UserError(f"{path} needs pyarrow to be read; install it with: {install_command('parquet')}") from None
    try:
        file = pq.ParquetFile(opened)
        schema, size = file.schema_arrow, file.metadata
        # Not column by column: pyarrow ends the process where a damaged file describes one wrongly.
        unpacked = sum(size.row_group(k).total_byte_size for k in range(size.num_row_groups))
    except Exception as error:  # a damaged file can raise anything
        raise UserError(f"{path} cannot be read as a .parquet file ({first_line(error)}); save it again") from None
    if len(schema.names) > most_columns:
        raise UserError(f"{path} has {len(schema.names)} columns; a table has at most {most_columns}")
    if not (0 <= unpacked <= LARGEST and 0 <= size.num_rows <= MOST_ROWS):
        raise UserError(f"{path} unpacks to {unpacked} bytes and {size.num_rows} rows; take a smaller part of it")
    wrong = [field for field in schema if not is_plain(field.type, pa.types)]
    if wrong:
        raise UserError(
            f"the column {wrong[0].name!r} of {path} has the type {str(wrong[0].type)[:40]}; save it as numbers or text"
        )
    try:
        table = file.read(use_threads=False)
        return list(schema.names), [to_values(name, table.column(k), path) for k, name in enumerate(schema.names)]
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path} cannot be read as a .parquet file ({first_line(error)}); save it again") from None


def is_plain(kind: Any, types: Any) -> bool:
    """Numbers, truth values, text, and text that is kept as a list of categories."""
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
    )


def to_values(name: str, column: Any, path: Path) -> list[str] | Array:
    if column.null_count:
        row = column.is_null().to_pylist().index(True) + 1
        raise UserError(f"row {row} of {path} has no {name!r}; fill it in, or leave the row out")
    values = column.to_pylist()
    if values and isinstance(values[0], str):
        return [str(value) for value in values]
    whole = bool(values) and isinstance(values[0], int)
    return np.array(values, dtype=np.int64 if whole and all(abs(v) < 2**62 for v in values) else np.float64)


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
