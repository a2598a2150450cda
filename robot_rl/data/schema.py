"""The row schema: the single definition of a transition's fields, with shape and dtype.

A row is the observation *before* an action, then the action and *its outcome*. An episode of T
actions has T + 1 rows; the last has ``is_last``, a zero action, and starts no transition.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.errors import RobotRLError, in_shell
from robot_rl.processes.resources import choice_file

SCHEMA_VERSION = 3
# Allowed dtype names for columns. External names are looked up here before NumPy sees them: for
# some texts NumPy would call Python's parser.
DTYPES = frozenset(np.dtype(code).name for code in "?bhiqBHIQefd")

_ZERO = np.zeros(1, np.float16)

Array = npt.NDArray[Any]
Observation = dict[str, Array]
Row = dict[str, Any]  # arrays, and NumPy scalars for shape ()

SOURCE_DEMONSTRATION = 0
SOURCE_POLICY = 1
SOURCE_INTERVENTION = 2
SOURCE_NAMES = ("demo", "policy", "intervention")


class SchemaMismatch(RobotRLError):
    """Data with an unexpected task, field, shape, rate or schema version."""


@dataclass(frozen=True)
class Field:
    """One named column: ``shape`` without the time axis, ``dtype`` as NumPy's name."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def holds_poses(self) -> bool:
        """Whether it is one pose (7,) or several (k, 7) [m, quaternion xyzw], by its name.

        True for `tcp_pose`, `object_poses` and other names ending in `pose` or `poses`; false for
        poses of joints.
        """
        named = self.name.endswith(("pose", "poses")) and "joint" not in self.name
        return named and self.shape[-1:] == (7,)


# The same for every robot and task. `RowBuilder` (robot_rl/data/rows.py) writes them, for actors
# and for recorders; a comment names the source. In an episode's last row only `is_last`, `source`,
# `episode_step`, `stamp_observation` and `base_action` are set; the others are 0.
SCALAR_FIELDS = (
    # Outcome of the action, set by the task's detector, `reward=`, or a person.
    Field("reward", "float32"),  # in the task's own scale; a sparse one is 1 at success, else 0
    Field("terminated", "bool"),  # the episode ended for good: no bootstrapping
    Field("truncated", "bool"),  # cut, for example by the time limit: the next row's value counts
    Field("is_last", "bool"),  # the final observation: no action follows
    Field("success", "bool"),  # this action reached the goal
    # Who acted, and how the action was executed.
    Field("intervened", "bool"),  # an operator acted in place of the policy
    Field("clamped", "bool"),  # the robot: a limit changed the requested action
    Field("source", "uint8"),  # who acted: one of the codes above
    Field("base_alone", "bool"),  # the policy: only its base acted, without noise
    Field("noiseless", "bool"),  # the policy: no sampling or exploration noise
    Field("chunk_index", "int16"),  # the policy: `base_action`'s index in the base's chunk, from 0
    Field("episode_step", "int32"),  # control steps since the reset, from 0
    Field("reward_version", "int32"),  # judge: 0 task, 1 person, 2 pose, 65536 and up a model
    Field("policy_version", "int64"),  # the policy: gradient updates of its weights
    # [ns], by the clock of the loop (robot_rl/env/clock.py). In real time that is the system clock;
    # on the stepped clock it is simulated time since the episode started, with first stamp 0.
    Field("stamp_observation", "int64"),  # the loop had the observation; sensors measured before
    Field("stamp_action", "int64"),  # the loop had sent the action
)
ANNOTATION = "annotation/"
LAST_COMMAND = "last_command"
OBJECT_POSES = "state/object_poses"  # (k, 7) [m, quaternion xyzw]
# float32 (d,) each, in [-1, 1], in the order of `action_names`. An arm's values are fractions of
# the largest step in the base frame (`robot.limits`); a gripper's are -1 open to 1 closed.
ACTION_FIELDS = (
    "action",  # what the environment sent, after safety
    "policy_action",  # the policy's intended action, even during an operator's intervention
    "base_action",  # the frozen base's proposal; 0 without a base
    LAST_COMMAND,  # observed: the command sent in the previous step
)
_NUMPY = (np.ndarray, np.generic)


@dataclass(frozen=True)
class RowSchema:
    """The columns of one task's rows."""

    task: str  # task that the rows were recorded on
    control_rate_hz: float  # steps per second of the recording
    action_names: tuple[str, ...]  # one name per action column
    # All columns; scalars first so that a reader can read them without the images.
    fields: tuple[Field, ...]

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Packed structured dtype of one row; field names contain slashes."""
        return np.dtype([(f.name, np.dtype(f.dtype), f.shape) for f in self.fields])

    @cached_property
    def observation_names(self) -> tuple[str, ...]:
        """Names of the observation columns, in order, including the last command."""
        observed = ("state/", "images/", "points/", LAST_COMMAND)
        return tuple(f.name for f in self.fields if f.name.startswith(observed))

    @cached_property
    def colour_cameras(self) -> dict[str, tuple[int, ...]]:
        """Name → (H, W, 3) of the columns with colour images."""
        images = (f for f in self.fields if f.name.startswith("images/"))
        return {f.name: f.shape for f in images if f.shape[-1:] == (3,)}

    @cached_property
    def point_clouds(self) -> dict[str, tuple[int, ...]]:
        """Name → (N, 3 or 6) of the columns with point clouds."""
        return {f.name: f.shape for f in self.fields if f.name.startswith("points/")}

    def with_fields(self, extra: Iterable[Field]) -> RowSchema:
        """Return the schema with further columns, before the images."""
        images = tuple(f for f in self.fields if f.name.startswith("images/"))
        others = tuple(f for f in self.fields if f not in images)
        return replace(self, fields=(*others, *extra, *images))

    @cached_property
    def recorded(self) -> RowSchema:
        """Return the schema without the columns specific to one policy."""
        return self._without("features/", "encoder_id", "plan/")

    def with_annotations(self, names: Iterable[str]) -> RowSchema:
        """Return the schema with annotations added to rows later, for a copy of a recording.

        An annotation becomes three columns, ``annotation/<name>/value``, ``.../valid`` (whether
        the row has one) and ``.../version`` (of the model that made it).

        Raises:
            SchemaMismatch: A name cannot be part of a column's name.
        """
        columns: list[Field] = []
        for name in names:
            if not all(part.strip(".") for part in name.split("/")):
                raise SchemaMismatch(
                    "an annotation cannot become a column",
                    got=name,
                    expected="a name whose parts between slashes are neither empty nor dots",
                )
            parts = (("value", "float32"), ("valid", "bool"), ("version", "int64"))
            columns += [Field(f"{ANNOTATION}{name}/{part}", dtype) for part, dtype in parts]
        return self.with_fields(columns)

    @cached_property
    def without_annotations(self) -> RowSchema:
        """Return the schema that the rows were recorded with."""
        return self._without(ANNOTATION)

    def _without(self, *prefixes: str) -> RowSchema:
        kept = tuple(f for f in self.fields if not f.name.startswith(prefixes))
        return replace(self, fields=kept)

    @cached_property
    def annotations(self) -> tuple[str, ...]:
        """Annotation names passed to `with_annotations`."""
        found = (f.name for f in self.fields if f.name.startswith(ANNOTATION))
        return tuple(n[len(ANNOTATION) : -len("/value")] for n in found if n.endswith("/value"))

    @property
    def action_dimension(self) -> int:
        """Number of action columns d."""
        return len(self.action_names)

    @cached_property
    def _columns(self) -> list[tuple[Field, np.dtype[Any]]]:
        return [(f, np.dtype(f.dtype)) for f in self.fields]

    @cached_property
    def _floats(self) -> list[str]:
        return [f.name for f, dtype in self._columns if dtype.kind == "f"]

    def check(self, values: Mapping[str, Array] | Array) -> None:
        """Check the values of all columns, of one or more rows; raises the errors of `pack`."""
        floats = [values[name].reshape(-1) for name in self._floats]
        actions = [values[name].reshape(-1) for name in ACTION_FIELDS if name in self._floats]
        finite = np.isfinite(np.concatenate([_ZERO, *floats])).all()
        if finite and (np.abs(np.concatenate([_ZERO, *actions])) <= 1.0).all():
            return
        for column in self.fields:
            _check_values(column, values[column.name])

    def pack(self, row: Mapping[str, Any]) -> bytes:
        """Check a row and turn it into the bytes for the wire and the store.

        Raises:
            SchemaMismatch: A missing or unknown field, a wrong shape or dtype, a value that is
                not finite or out of the column's range, or an action outside [-1, 1].
        """
        if len(row) != len(self.fields):
            raise _wrong_names(self.fields, row)
        values: dict[str, Array] = {}
        for column, dtype in self._columns:
            if column.name not in row:
                raise _wrong_names(self.fields, row)
            value = row[column.name]
            typed = isinstance(value, _NUMPY) and value.dtype == dtype
            if not typed or value.shape != column.shape:
                value = _converted(column, value)
            values[column.name] = value
        self.check(values)
        return b"".join([value.tobytes() for value in values.values()])

    def unpack(self, buffer: bytes | memoryview) -> npt.NDArray[Any]:
        """View the bytes of n whole rows as a structured array (n,), without a copy."""
        size = self.dtype.itemsize
        rows, rest = divmod(len(buffer), size)
        if rest or not rows:
            raise SchemaMismatch(
                "packed rows have a wrong length",
                got=f"{len(buffer)} bytes",
                expected=f"a multiple of {size} bytes",
            )
        return np.ndarray(rows, self.dtype, buffer)

    def to_json(self) -> str:
        """Serialise the schema for a store's or a dataset's metadata."""
        return json.dumps(
            {
                "version": SCHEMA_VERSION,
                "task": self.task,
                "control_rate_hz": self.control_rate_hz,
                "action_names": list(self.action_names),
                "fields": [[f.name, f.dtype, list(f.shape)] for f in self.fields],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> RowSchema:
        """Parse the result of `to_json`; raises `SchemaMismatch`, also for another version."""
        try:
            content = json.loads(text)
            version = int(content["version"])
            schema = cls(
                str(content["task"]),
                float(content["control_rate_hz"]),
                tuple(str(name) for name in content["action_names"]),
                tuple(_read_field(*field) for field in content["fields"]),
            )
            _ = schema.dtype  # NumPy's limits on names and shapes
            if not 0 < schema.control_rate_hz < math.inf:
                raise ValueError(f"control_rate_hz is {schema.control_rate_hz}")
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise SchemaMismatch(
                "the schema cannot be read",
                got=f"{error!r}",
                expected="what RowSchema.to_json writes",
            ) from error
        if version != SCHEMA_VERSION:
            raise SchemaMismatch(
                "the schema version differs",
                got=version,
                expected=SCHEMA_VERSION,
                hint="convert the data with the robot_rl version that wrote it",
            )
        return schema

    def compare(self, other: RowSchema, *, what: str = "the data") -> None:
        """Check that rows of schema `other`, from `what`, can be used with this schema.

        Raises:
            SchemaMismatch: Names the first field that differs, expected and got.
        """
        for name in ("task", "control_rate_hz", "action_names"):
            expected, got = getattr(self, name), getattr(other, name)
            if expected != got:
                raise SchemaMismatch(
                    f"{what}: {name} differs", got=got, expected=expected, hint=_taking(name, got)
                )
        mine = {f.name: f for f in self.fields}
        theirs = {f.name: f for f in other.fields}
        for name in [*mine, *theirs]:
            if mine.get(name) != theirs.get(name):
                raise SchemaMismatch(
                    f"{what}: field {name!r} differs",
                    got=_describe(theirs.get(name)),
                    expected=_describe(mine.get(name)),
                )


def _taking(name: str, value: object) -> str | None:
    """The setting that makes a run use the data's task or rate; None if the task is unknown."""
    words = in_shell(f"{name}={value}")
    if name == "task" and choice_file("task", str(value)) is None:
        if re.search(r"-v\d+$", str(value)) is None:  # a Gymnasium id
            return None
        words = in_shell("robot=gym", f"robot.id={value}")
    return None if name == "action_names" else f"{words} takes that of the data"


def row_schema(
    task: str,
    observation_fields: Iterable[Field],
    action_names: Iterable[str],
    control_rate_hz: float,
) -> RowSchema:
    """Build the schema of a task: its observation and action columns and the fixed ones."""
    names = tuple(action_names)
    observation = sorted(observation_fields, key=lambda f: (f.name.startswith("images/"), f.name))
    actions = tuple(Field(name, "float32", (len(names),)) for name in ACTION_FIELDS)
    fields = (*SCALAR_FIELDS, *actions, *observation)
    return RowSchema(task, float(control_rate_hz), names, fields)


def _read_field(name: object, dtype: object, shape: Iterable[object]) -> Field:
    if not isinstance(name, str) or not 0 < len(name) <= 128 or not name.isprintable():
        raise ValueError(f"a column cannot have the name {str(name)[:40]!r}")
    if dtype not in DTYPES:
        raise ValueError(f"a column cannot have the dtype {str(dtype)[:40]}")
    return Field(name, str(dtype), tuple(int(str(n)) for n in shape))


def _describe(column: Field | None) -> str:
    return "absent" if column is None else f"{column.dtype} {column.shape}"


def _wrong_names(fields: tuple[Field, ...], row: Mapping[str, Any]) -> SchemaMismatch:
    names = [f.name for f in fields]
    unknown = sorted(row.keys() - set(names))
    missing = next((name for name in names if name not in row), None)
    problem = "has fields that the schema does not know"
    problem = problem if unknown else f"lacks the field {missing!r}"
    return SchemaMismatch(f"the row {problem}", got=unknown or sorted(row), expected=names)


def _converted(column: Field, content: object) -> Array:
    """Check a value of another dtype, and convert it to the column's without loss of range."""
    try:
        value = np.asarray(content)
    except ValueError as error:  # a ragged list of lists
        raise _wrong(column, "is no array", content, _describe(column)) from error
    if value.shape != column.shape:
        raise _wrong(column, "has another shape", value.shape, column.shape)
    if not np.can_cast(value.dtype, column.dtype, casting="same_kind"):
        raise _wrong(column, "has another dtype", value.dtype, column.dtype)
    _check_values(column, value)
    with np.errstate(over="ignore"):
        converted = value.astype(column.dtype)
    exact = converted.dtype.kind == "f" or (converted == value).all()
    if not (exact and np.isfinite(converted).all()):
        raise _wrong(column, "is too large for its dtype", value, column.dtype)
    return converted


def _check_values(column: Field, value: Array) -> None:
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise _wrong(column, "is not finite", value, "finite numbers")
    if column.name in ACTION_FIELDS and not (np.abs(value) <= 1.0).all():
        raise _wrong(column, "is out of range", value, "values in [-1, 1]")


def _wrong(column: Field, problem: str, got: object, expected: object) -> SchemaMismatch:
    return SchemaMismatch(f"field {column.name!r} {problem}", got=got, expected=expected)
