"""What a mini-batch looks like: names, dtypes and shapes of its arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from robot_rl.data.schema import LAST_COMMAND, Field, RowSchema
from robot_rl.errors import did_you_mean
from robot_rl.replay.annotations import AnnotationField
from robot_rl.replay.batches import Batch, allocate, checked
from robot_rl.replay.errors import ReplayError, StoreError

NEXT = "next/"
CHUNK = "chunk/"
ANNOTATION = "annotation/"
VALID = "/valid"
WINDOW_FIELDS: dict[str, np.dtype[Any]] = {
    "reward": np.dtype(np.float32),
    "discount": np.dtype(np.float32),
    "steps": np.dtype(np.int16),
    "source": np.dtype(np.uint8),
}


class BatchLayout:
    """The arrays of a batch: fields at s and at the next state, chunks, annotations.

    Args:
        schema: Of the table.
        fields: Names of the fields at s.
        known: The table's annotations.
        annotations: Names of those that are wanted.
        batch_size: B.
        chunk_fields: Names of the fields that are given for every step of a window.
        n_step: Most steps of a window.

    Attributes:
        columns: Fields at s.
        next_columns: Those of them that are given at the next state too.
        chunk_columns: Fields of every step.
        annotations: What is annotated, given at both.

    Raises:
        ReplayError: The table has no such field, or a name is wanted twice.
        StoreError: No row has such an annotation.
    """

    def __init__(
        self,
        schema: RowSchema,
        fields: Sequence[str],
        known: Mapping[str, AnnotationField],
        annotations: Sequence[str],
        batch_size: int,
        chunk_fields: Sequence[str] = (),
        n_step: int = 1,
    ) -> None:
        """Look the names up; see the class."""
        for names in (fields, annotations, chunk_fields):
            _expect_once(names)
        self._batch_size = batch_size
        self.columns = [_column(schema, name) for name in fields]
        self.next_columns = [c for c in self.columns if _has_next(c.name)]
        self.chunk_columns = [_known(schema, name) for name in chunk_fields]
        self.annotations = [_annotation(known, name) for name in annotations]
        self._layout: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            **{name: (dtype, ()) for name, dtype in WINDOW_FIELDS.items()},
            **{c.name: (np.dtype(c.dtype), c.shape) for c in self.columns},
            **{NEXT + c.name: (np.dtype(c.dtype), c.shape) for c in self.next_columns},
        }
        for c in self.chunk_columns:
            self._layout[CHUNK + c.name] = (np.dtype(c.dtype), (n_step, *c.shape))
        for field in self.annotations:
            for name in (ANNOTATION + field.name, NEXT + ANNOTATION + field.name):
                self._layout[name] = (np.dtype(field.dtype), field.shape)
                self._layout[name + VALID] = (np.dtype(np.bool_), ())

    def allocate(self, count: int | None = None) -> Batch:
        """Return arrays for a batch, or for `count` batches with a leading axis."""
        return allocate(self._layout, self._lead(count))

    def checked(self, out: Batch, count: int | None = None) -> Batch:
        """Return `out` if it is what `allocate` makes; bytes are copied into it unseen.

        Raises:
            ReplayError: An array is missing, or has another dtype, shape or layout.
        """
        return checked(out, self._layout, self._lead(count))

    def _lead(self, count: int | None) -> tuple[int, ...]:
        return (self._batch_size,) if count is None else (count, self._batch_size)


def _expect_once(names: Sequence[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ReplayError("names to sample are given twice", got=twice, expected="each name once")


def _has_next(name: str) -> bool:
    at_every_state = ("base_action", LAST_COMMAND)
    return name.startswith(("state/", "images/", "features/")) or name in at_every_state


def _column(schema: RowSchema, name: str) -> Field:
    if name in WINDOW_FIELDS:
        raise ReplayError(
            f"the field {name!r} is in every batch already", hint="leave it out of fields"
        )
    return _known(schema, name)


def _known(schema: RowSchema, name: str) -> Field:
    columns = {c.name: c for c in schema.fields}
    if name not in columns:
        raise ReplayError(
            "the table has no such field",
            got=name,
            expected=sorted(columns),
            hint=did_you_mean(name, columns),
        )
    return columns[name]


def _annotation(known: Mapping[str, AnnotationField], name: str) -> AnnotationField:
    if name not in known:
        raise StoreError(
            "no row of the table has such an annotation",
            got=name,
            expected=sorted(known),
            hint=did_you_mean(name, known),
        )
    return known[name]
