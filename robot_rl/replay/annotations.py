"""Annotations: what is said of stored rows later, beside the rows, which never change.

An annotation is a value under a row's place, a name (for example of a relabelled reward) and the
version of the model that made it. Each name has one dtype and shape per table, declared by its
first use. A stored version never changes; a newer version is another value beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Array, SchemaMismatch
from robot_rl.replay.catalogue import Catalogue
from robot_rl.replay.errors import AnnotationRefused
from robot_rl.replay.records import ROW_KEY_DTYPE, EpisodeRecord, SessionKey, TableInfo

VERSION_LIMIT = 2**63
MAXIMUM_ANNOTATION_BYTES = 1 << 20
MAXIMUM_NAMES = 256


@dataclass(frozen=True)
class AnnotationField:
    """An annotation of a table, as its first use declared it.

    Attributes:
        identifier: The number that stands for it in the catalogue.
        table: Number of its table.
        name: What clients call it.
        dtype: NumPy's name of it.
        shape: Of one value.
        written: Values ever stored, so that a reader sees whether there are newer ones.
    """

    identifier: int
    table: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    written: int = 0

    @property
    def size(self) -> int:
        """Bytes of one value."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class Annotations:
    """Values of one name and version for some rows.

    Attributes:
        table: Name of the table.
        name: Of the annotation.
        version: Of the model that made the values.
        dtype: NumPy's name of the values' dtype.
        shape: Of one value.
        keys: Shape (n,), dtype `ROW_KEY_DTYPE`.
        values: The bytes of n values.
    """

    table: str
    name: str
    version: int
    dtype: str
    shape: tuple[int, ...]
    keys: npt.NDArray[np.void]
    values: memoryview


def row_keys(episode: EpisodeRecord) -> npt.NDArray[np.void]:
    """Return the keys of an episode's rows, shape (rows,), dtype `ROW_KEY_DTYPE`."""
    keys = np.empty(episode.rows, ROW_KEY_DTYPE)
    keys["table"], keys["actor"], keys["session"] = episode.session_key
    keys["sequence"] = episode.first_sequence + np.arange(episode.rows)
    return keys


def fields_of_table(catalogue: Catalogue, table: int) -> dict[str, AnnotationField]:
    """Return the annotations that were ever used in a table, by name."""
    rows = catalogue.read('SELECT * FROM annotation_fields WHERE "table" = ?', table)
    return {
        name: AnnotationField(number, table, name, dtype, tuple(json.loads(shape)), written)
        for number, _, name, dtype, shape, written in rows
    }


def newest_values(
    catalogue: Catalogue, field: AnnotationField, session: SessionKey, sequences: tuple[int, int]
) -> Iterator[tuple[int, int, bytes]]:
    """Yield sequence, version and bytes of the newest value of each row that has one.

    Args:
        catalogue: Of the store.
        field: Which annotation.
        session: Table, actor and session of the rows.
        sequences: First sequence, and the one behind the last.
    """
    yield from catalogue.read(
        "SELECT sequence, max(version), value FROM annotations WHERE field = ? AND actor = ?"
        " AND session = ? AND sequence >= ? AND sequence < ? GROUP BY sequence",
        field.identifier,
        *session[1:],
        *sequences,
    )


def write_annotations(
    catalogue: Catalogue,
    info: TableInfo,
    new: Annotations,
    has_rows: Callable[[SessionKey, npt.NDArray[np.int64]], npt.NDArray[np.bool_]],
) -> int:
    """Put annotations; those that are stored already are skipped.

    Args:
        catalogue: Of the store, open for writing.
        info: The table.
        new: The values.
        has_rows: Tells which sequences of a session are in the store.

    Returns:
        How many were new.

    Raises:
        SchemaMismatch: The name was declared with another dtype or shape.
        AnnotationRefused: A row is not there, a value is impossible, or the version is stored
            with another value. Nothing was written.
    """
    field = _declared(fields_of_table(catalogue, info.identifier), info, new)
    _check_values(field, new)
    _check_rows(info, new, has_rows)
    data, size = new.values.cast("B"), field.size
    places = new.keys[["actor", "session", "sequence"]].tolist()
    rows = [
        (field.identifier, *place, new.version, data[at * size : (at + 1) * size])
        for at, place in enumerate(places)
    ]
    with catalogue.transaction() as connection:
        statement = "INSERT OR IGNORE INTO annotations VALUES (?,?,?,?,?,?)"
        count = connection.executemany(statement, rows).rowcount
        if count < len(rows):
            _expect_same(catalogue, new, rows)
        field = replace(field, written=field.written + count)
        connection.execute(
            "INSERT OR REPLACE INTO annotation_fields VALUES (?,?,?,?,?,?)",
            (
                field.identifier,
                field.table,
                field.name,
                field.dtype,
                json.dumps(field.shape),
                field.written,
            ),
        )
    return count


def _expect_same(catalogue: Catalogue, new: Annotations, rows: list[tuple[object, ...]]) -> None:
    for *place, value in rows:
        ((stored,),) = catalogue.read(
            "SELECT value FROM annotations WHERE field = ? AND actor = ? AND session = ?"
            " AND sequence = ? AND version = ?",
            *place,
        )
        if stored != value:
            raise AnnotationRefused(
                f"version {new.version} of the annotation {new.name!r} has another value",
                got=tuple(place[1:4]),
                hint="a version never changes: store corrected values under a newer one",
            )


def _check_rows(
    info: TableInfo,
    new: Annotations,
    has_rows: Callable[[SessionKey, npt.NDArray[np.int64]], npt.NDArray[np.bool_]],
) -> None:
    sequences = new.keys["sequence"].astype(np.int64)
    heads, which = np.unique(new.keys[["table", "actor", "session"]], return_inverse=True)
    for number, head in enumerate(heads.tolist()):
        here = np.flatnonzero(which == number)
        there = has_rows(head, sequences[here])
        if head[0] != info.identifier or not there.all():
            missing = new.keys[here[np.argmin(there)]]
            raise AnnotationRefused(
                f"a row to annotate is not in the table {info.name!r}",
                got=missing.item(),
                expected="table, actor, session and sequence of a stored row",
                hint="it may have been evicted; leave it out and send the others again",
            )


def _declared(
    fields: dict[str, AnnotationField], info: TableInfo, new: Annotations
) -> AnnotationField:
    known = fields.get(new.name)
    if known is None:
        if len(fields) >= MAXIMUM_NAMES:
            raise AnnotationRefused(
                f"the table {info.name!r} has too many annotations",
                got=len(fields),
                expected=f"at most {MAXIMUM_NAMES} names",
                hint="a newer model is a newer version under the same name",
            )
        number = (info.identifier << 16) + len(fields)
        return AnnotationField(number, info.identifier, new.name, new.dtype, new.shape)
    if (known.dtype, known.shape) != (new.dtype, new.shape):
        raise SchemaMismatch(
            f"the annotation {new.name!r} of table {info.name!r} was declared differently",
            got=f"{new.dtype} {new.shape}",
            expected=f"{known.dtype} {known.shape}",
            hint="convert the values, or use another name",
        )
    return known


def _check_values(field: AnnotationField, new: Annotations) -> None:
    if new.values.nbytes != len(new.keys) * field.size:
        raise AnnotationRefused(
            f"the annotation {new.name!r} has another number of values than of keys",
            got=f"{new.values.nbytes} bytes",
            expected=f"{len(new.keys)} x {field.size} bytes",
        )
    values: Array = np.frombuffer(new.values, field.dtype)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise AnnotationRefused(
            f"the annotation {new.name!r} is not finite", expected="finite numbers"
        )
    if values.dtype.kind == "b" and (np.frombuffer(new.values, np.uint8) > 1).any():
        raise AnnotationRefused(
            f"the annotation {new.name!r} is not boolean", expected="bytes 0 or 1"
        )
