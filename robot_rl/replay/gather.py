"""Copying many rows out of the memory map into a batch's arrays.

This is where a mini-batch spends its time. Fields of a few bytes are copied together as the head
of each distinct row and then spread by NumPy; large ones (images) go straight to their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lmdb
import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Array, Field, RowSchema
from robot_rl.replay.annotations import AnnotationField, latest_of_row
from robot_rl.replay.batch_layout import ANNOTATION, CHUNK, VALID, BatchLayout
from robot_rl.replay.environment import ANNOTATIONS, ROWS, Environment
from robot_rl.replay.records import ROW_KEY_DTYPE, field_offset, split_keys
from robot_rl.replay.windows import Records, place_codes

LARGE_BYTES = 2048

Slots = npt.NDArray[np.int64]


class _Head:
    """The bytes of a row from the first of some fields to the last.

    Attributes:
        start: Their place in a row.
        end: Behind the last.
        dtype: With a name for each field.
    """

    def __init__(self, schema: RowSchema, fields: Sequence[Field]) -> None:
        offsets = [field_offset(schema, field.name) for field in fields]
        ends = [o + schema.dtype[f.name].itemsize for o, f in zip(offsets, fields, strict=True)]
        self.start, self.end = min(offsets, default=0), max(ends, default=0)
        self.dtype: np.dtype[Any] = np.dtype(
            {
                "names": [field.name for field in fields],
                "formats": [(field.dtype, field.shape) for field in fields],
                "offsets": [offset - self.start for offset in offsets],
                "itemsize": self.end - self.start,
            }
        )

    def copy(self, cursor: lmdb.Cursor[memoryview], keys: list[bytes]) -> tuple[Records, list[int]]:
        """Return the heads of rows, shape (keys,), and which rows are absent."""
        start, end, width = self.start, self.end, self.dtype.itemsize
        heads = np.zeros(len(keys), self.dtype)
        view, at = heads.view(np.uint8).data, 0
        absent: list[int] = []
        find, value = cursor.set_key, cursor.value
        for row, key in enumerate(keys):
            if find(key):
                view[at : at + width] = value()[start:end]
            else:
                absent.append(row)
            at += width
        return heads, absent


class RowGather:
    """Fills arrays with fields of rows at s and at the next state, and with chunks of rows from s.

    Args:
        environment: The open store.
        table: Number of the table.
        schema: Its schema.
        layout: What the arrays are.
    """

    def __init__(
        self,
        environment: Environment,
        table: int,
        schema: RowSchema,
        layout: BatchLayout,
    ) -> None:
        """Work out which bytes of a row are wanted; see the class."""
        self._environment, self._table = environment, table
        self._annotations = layout.annotations
        sizes = {c.name: schema.dtype[c.name].itemsize for c in layout.columns}
        small = [c for c in layout.columns if sizes[c.name] < LARGE_BYTES]
        self._large = {
            name: (field_offset(schema, name), size)
            for name, size in sizes.items()
            if size >= LARGE_BYTES
        }
        self._head = _Head(schema, small)
        self._chunk_head = _Head(schema, layout.chunk_columns)

    def fill(
        self,
        windows: Records,
        sessions: Sequence[tuple[int, int]],
        current: Mapping[str, Array],
        following: Mapping[str, Array],
    ) -> Slots:
        """Copy the rows of windows, in one read transaction.

        Args:
            windows: Shape (N,), dtype `WINDOW`.
            sessions: Actor and session numbers, by the windows' session index.
            current: Arrays to fill with fields at s, by name, shape (N, *field).
            following: The same for the next state.

        Returns:
            The windows of which a row is no longer in the store, ascending; their places in the
            arrays are undefined.
        """
        count = len(windows)
        sequences = windows["sequence"]
        codes = np.concatenate(
            (
                place_codes(windows["session"], sequences),
                place_codes(windows["session"], sequences + windows["ahead"]),
            )
        )
        distinct, inverse = np.unique(codes, return_inverse=True)
        keys = self._keys(distinct, sessions)
        with self._environment.begin_buffers() as txn:
            cursor = txn.cursor(self._environment.databases[ROWS])
            if self._large:
                heads, absent = self._copy_all(cursor, keys, inverse, current, following)
            else:
                heads, absent = self._head.copy(cursor, keys)
            for field in self._annotations:
                self._copy_annotation(txn, field, keys, inverse, (current, following))
            gone = self._copy_chunks(cursor, windows, sessions, current)
        for name in self._head.dtype.names or ():
            if name in current:
                current[name][...] = heads[name][inverse[:count]]
            if name in following:
                following[name][...] = heads[name][inverse[count:]]
        if absent:
            gone[np.flatnonzero(np.isin(inverse, absent)) % count] = True
        return np.flatnonzero(gone)

    def _copy_chunks(
        self,
        cursor: lmdb.Cursor[memoryview],
        windows: Records,
        sessions: Sequence[tuple[int, int]],
        arrays: Mapping[str, Array],
    ) -> npt.NDArray[np.bool_]:
        """Fill the chunks with the rows of each window's steps, zeros after them.

        Returns:
            Whether a row of a window is no longer in the store, shape (N,).
        """
        gone = np.zeros(len(windows), np.bool_)
        names = self._chunk_head.dtype.names or ()
        if not names:
            return gone
        steps = np.arange(arrays[CHUNK + names[0]].shape[1])
        window, step = np.nonzero(steps < windows["steps"][:, None])
        codes = place_codes(windows["session"][window], windows["sequence"][window] + step)
        distinct, inverse = np.unique(codes, return_inverse=True)
        heads, absent = self._chunk_head.copy(cursor, self._keys(distinct, sessions))
        for name in names:
            arrays[CHUNK + name][...] = 0
            arrays[CHUNK + name][window, step] = heads[name][inverse]
        gone[window[np.isin(inverse, absent)]] = True
        return gone

    def _keys(
        self, distinct: npt.NDArray[np.int64], sessions: Sequence[tuple[int, int]]
    ) -> list[bytes]:
        number = distinct >> 40
        table = np.array(sessions, np.uint64)
        keys = np.empty(len(distinct), ROW_KEY_DTYPE)
        keys["table"] = self._table
        keys["actor"] = table[number, 0]
        keys["session"] = table[number, 1]
        keys["sequence"] = distinct & ((1 << 40) - 1)
        return split_keys(keys)

    def _copy_all(
        self,
        cursor: lmdb.Cursor[memoryview],
        keys: list[bytes],
        inverse: Slots,
        current: Mapping[str, Array],
        following: Mapping[str, Array],
    ) -> tuple[Records, list[int]]:
        """Return what `_copy_heads` does, and copy large fields to where they go."""
        start, end, width = self._head.start, self._head.end, self._head.dtype.itemsize
        heads = np.zeros((len(keys), width), np.uint8)
        view = heads.reshape(-1).data
        count = len(inverse) // 2
        targets = self._targets(current), self._targets(following)
        slots = np.argsort(inverse, kind="stable").tolist()
        rows = inverse[slots].tolist()
        absent: list[int] = []
        at, there = -1, False
        data = memoryview(b"")
        find, value = cursor.set_key, cursor.value
        for slot, row in zip(slots, rows, strict=True):
            if row != at:
                at, there = row, find(keys[row])
                if there:
                    data = value()
                    view[row * width : (row + 1) * width] = data[start:end]
                else:
                    absent.append(row)
            if there:
                side, place = divmod(slot, count)
                for target, offset, size in targets[side]:
                    target[place * size : (place + 1) * size] = data[offset : offset + size]
        heads_of_rows = heads.reshape(-1).view(self._head.dtype) if width else np.empty(len(keys))
        return heads_of_rows, absent

    def _copy_annotation(
        self,
        txn: lmdb.Transaction[memoryview],
        field: AnnotationField,
        keys: list[bytes],
        inverse: Slots,
        sides: tuple[Mapping[str, Array], Mapping[str, Array]],
    ) -> None:
        """Fill the column of an annotation and its mask at s and at the next state."""
        values = np.zeros((len(keys), *field.shape), field.dtype)
        valid = np.zeros(len(keys), np.bool_)
        cursor = txn.cursor(self._environment.databases[ANNOTATIONS])
        for row, key in enumerate(keys):
            value = latest_of_row(cursor, field, key)
            if value is not None:
                values[row] = np.frombuffer(value, field.dtype).reshape(field.shape)
                valid[row] = True
        name = ANNOTATION + field.name
        for arrays, places in zip(sides, np.split(inverse, 2), strict=True):
            arrays[name][...] = values[places]
            arrays[name + VALID][...] = valid[places]

    def _targets(self, arrays: Mapping[str, Array]) -> list[tuple[memoryview, int, int]]:
        """List the large fields among arrays: the bytes to fill, offset and size in a row."""
        return [
            (arrays[name].reshape(-1).view(np.uint8).data, offset, size)
            for name, (offset, size) in self._large.items()
            if name in arrays
        ]
