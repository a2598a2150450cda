"""The client's side of annotations: values for rows, as requests of a bounded size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from robot_rl.data.schema import Array
from robot_rl.replay.errors import AnnotationRefused
from robot_rl.replay.outbox import Request
from robot_rl.replay.records import ROW_KEY_DTYPE
from robot_rl.replay.wire import Kind

ROWS_PER_REQUEST = 1024
BYTES_PER_REQUEST = 4 << 20


def annotate_requests(
    table: str, name: str, version: int, keys: Array, values: Array
) -> Iterator[Request]:
    """Yield the requests that store annotations; see `ReplayClient.annotate`.

    Raises:
        AnnotationRefused: The keys are no row keys, or there are not as many values.
    """
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    if keys.dtype != ROW_KEY_DTYPE or keys.ndim != 1 or values.shape[:1] != keys.shape:
        raise AnnotationRefused(
            f"the annotation {name!r} needs one value for each row key",
            got=f"keys {keys.dtype} {keys.shape}, values {values.dtype} {values.shape}",
            expected="keys from row_keys(episode), and values of shape (len(keys), *shape)",
        )
    shape = values.shape[1:]
    size = max(values.nbytes // max(len(values), 1), 1)
    rows = max(min(ROWS_PER_REQUEST, BYTES_PER_REQUEST // size), 1)
    header = {
        "table": table,
        "name": name,
        "version": int(version),
        "dtype": values.dtype.name,
        "shape": list(shape),
    }
    for at in range(0, len(keys), rows):
        part = slice(at, at + rows)
        yield Request(Kind.ANNOTATE, header, [keys[part].tobytes(), values[part].tobytes()])
