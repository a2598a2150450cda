"""Annotations: what is said of stored rows later, beside the rows, which never change.

An annotation is a value under a row's key, a name (for example of a relabelled reward) and the
version of the model that made it. Each name has one dtype and shape per table, declared by its
first use. A stored version never changes; a newer version is another value beside it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import lmdb
import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Array, SchemaMismatch
from robot_rl.replay.environment import ANNOTATION_FIELDS, ANNOTATIONS, ROWS
from robot_rl.replay.errors import AnnotationRefused
from robot_rl.replay.records import (
    ROW_KEY,
    ROW_KEY_DTYPE,
    TABLE_KEY,
    EpisodeRecord,
    SessionKey,
    TableInfo,
    split_keys,
)

ANNOTATION_KEY = struct.Struct(ROW_KEY.format + "HQ")  # row key, number of the name, version
VERSION_LIMIT = 2**63
MAXIMUM_ANNOTATION_BYTES = 1 << 20
MAXIMUM_NAMES = 256


@dataclass(frozen=True)
class AnnotationField:
    """An annotation of a table, as its first use declared it.

    Attributes:
        identifier: The number that stands for its name in keys.
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

    @property
    def key(self) -> bytes:
        """Where the declaration is stored."""
        return TABLE_KEY.pack(self.table) + self.name.encode()

    def to_bytes(self) -> bytes:
        """Serialise for the store."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> AnnotationField:
        """Read what `to_bytes` wrote."""
        content = json.loads(value)
        return cls(**{**content, "shape": tuple(content["shape"])})


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


def read_fields(
    txn: lmdb.Transaction[bytes], databases: Mapping[bytes, lmdb._Database], table: int
) -> dict[str, AnnotationField]:
    """Return the annotations that were ever used in a table, by name."""
    if ANNOTATION_FIELDS not in databases:
        return {}
    prefix = TABLE_KEY.pack(table)
    fields = (
        AnnotationField.from_bytes(value)
        for key, value in txn.cursor(databases[ANNOTATION_FIELDS])
        if key[: len(prefix)] == prefix
    )
    return {field.name: field for field in fields}


def write_annotations(
    txn: lmdb.Transaction[bytes],
    databases: Mapping[bytes, lmdb._Database],
    info: TableInfo,
    new: Annotations,
) -> int:
    """Put annotations; those that are stored already are skipped.

    Returns:
        How many were new.

    Raises:
        SchemaMismatch: The name was declared with another dtype or shape.
        AnnotationRefused: A row is not there, a value is impossible, or the version is stored
            with another value. Abort the transaction then.
    """
    field = _declared(read_fields(txn, databases, info.identifier), info, new)
    _check_values(field, new)
    count = 0
    data, size = new.values.cast("B"), field.size
    rows = txn.cursor(databases[ROWS])
    for index, key in enumerate(split_keys(new.keys)):
        if TABLE_KEY.unpack_from(key)[0] != info.identifier or not rows.set_key(key):
            raise AnnotationRefused(
                f"a row to annotate is not in the table {info.name!r}",
                got=ROW_KEY.unpack(key),
                expected="table, actor, session and sequence of a stored row",
                hint="it may have been evicted; leave it out and send the others again",
            )
        place = ANNOTATION_KEY.pack(*ROW_KEY.unpack(key), field.identifier, new.version)
        value = bytes(data[index * size : (index + 1) * size])
        if txn.put(place, value, overwrite=False, db=databases[ANNOTATIONS]):
            count += 1
        elif txn.get(place, db=databases[ANNOTATIONS]) != value:
            raise AnnotationRefused(
                f"version {new.version} of the annotation {new.name!r} has another value",
                got=ROW_KEY.unpack(key),
                hint="a version never changes: store corrected values under a newer one",
            )
    field = replace(field, written=field.written + count)
    txn.put(field.key, field.to_bytes(), db=databases[ANNOTATION_FIELDS])
    return count


def values_in_stretch(
    txn: lmdb.Transaction[memoryview],
    databases: Mapping[bytes, lmdb._Database],
    field: AnnotationField,
    session: SessionKey,
    sequences: tuple[int, int],
) -> Iterator[tuple[int, int, memoryview]]:
    """Yield sequence, version and bytes of each value, of each row the newest version last.

    Args:
        txn: A read; the bytes are valid until it ends.
        databases: The sub-databases.
        field: Which annotation.
        session: Table, actor and session of the rows.
        sequences: First sequence, and the one behind the last.
    """
    if ANNOTATIONS not in databases:
        return
    stop = ROW_KEY.pack(*session, sequences[1])
    with txn.cursor(databases[ANNOTATIONS]) as cursor:
        more = cursor.set_range(ROW_KEY.pack(*session, sequences[0]))
        while more and bytes(cursor.key()) < stop:
            *_, sequence, identifier, version = ANNOTATION_KEY.unpack(cursor.key())
            if identifier == field.identifier:
                yield sequence, version, cursor.value()
            more = cursor.next()


def latest_of_row(
    cursor: lmdb.Cursor[memoryview], field: AnnotationField, row_key: bytes
) -> memoryview | None:
    """Return the newest value of a row, None if it has none.

    Args:
        cursor: Of the sub-database of annotations.
        field: Which annotation.
        row_key: The row's key.
    """
    row = ROW_KEY.unpack(row_key)
    found = cursor.set_range(ANNOTATION_KEY.pack(*row, field.identifier, VERSION_LIMIT))
    if not (cursor.prev() if found else cursor.last()):
        return None
    *at, identifier, _ = ANNOTATION_KEY.unpack(cursor.key())
    return cursor.value() if tuple(at) == row and identifier == field.identifier else None


def _declared(
    fields: Mapping[str, AnnotationField], info: TableInfo, new: Annotations
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
        number = 1 + max((field.identifier for field in fields.values()), default=0)
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
