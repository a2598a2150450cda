"""Converts the episodes of a foreign dataset to rows, using a mapping file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

from robot_rl.data.episodes import DatasetDamaged, DatasetError, Episode
from robot_rl.data.pictures import PictureError, PictureForm
from robot_rl.data.schema import (
    LAST_COMMAND,
    OBJECT_POSES,
    SOURCE_DEMONSTRATION,
    Array,
    Field,
    SchemaMismatch,
    row_schema,
)
from robot_rl.data.transfer import close_episode
from robot_rl.env.robot import ARM_ACTIONS, GRIPPER_ACTION, GRIPPER_OPEN, gripper_columns
from robot_rl.extras.importers.dataset import ALL, ForeignDataset, first_readable, one_line
from robot_rl.extras.importers.foreign_pictures import as_camera, camera_form, is_picture
from robot_rl.extras.importers.mapping import (
    ABSOLUTE,
    ANY,
    CONVENTIONS,
    ENVIRONMENT,
    NEVER,
    RATES,
    SUCCESS,
    TERMINATED,
    parts,
    read_mapping,
)
from robot_rl.safety import rotations

# Allowed rounding beyond the bounds; and the fraction of steps beyond them above which the bounds,
# or the convention, must be wrong.
_ROUNDING, _MOST_BEYOND = 1e-4, 0.05
_POSITION, _ROTATION = ARM_ACTIONS[:3], ARM_ACTIONS[3:]
# Rotation formats; Euler angles turn about the fixed axes x, y, z in this order.
_TURNS = {
    _ROTATION: Rotation.from_rotvec,
    ("roll", "pitch", "yaw"): partial(Rotation.from_euler, "xyz"),
    ("qx", "qy", "qz", "qw"): Rotation.from_quat,
}


class MappedEpisodes:
    """The episodes of a foreign dataset, converted by a mapping file. See `EpisodeSource`.

    An episode ends at its first step that terminated, or as `close_episode` decides. The first
    `last_command` is that of an arm at rest with open grippers. Everything except the images is
    checked on creation. Episodes that cannot be read are left out.

    Raises:
        SchemaMismatch: The mapping does not fit the dataset, or the actions their bounds.
        DatasetError: A value is not finite or out of place, or no episode is a success.
    """

    def __init__(self, dataset: ForeignDataset, file: Path) -> None:
        self._dataset, self._file = dataset, file
        self._mapping = mapping = read_mapping(file, dataset)
        self._forms: dict[str, PictureForm] = {}  # by camera
        # Unreadable episodes are left out; a wrong value in a readable one is an error.
        self._lost: dict[str, str] = {}
        columns = self._columns(mapping.observations)
        first = first_readable(dataset, columns, mapping.episodes).columns
        seen = {name: self._seen(name, first) for name in mapping.observations}
        fields = [Field(name, a.dtype.name, a.shape[1:]) for name, a in seen.items()]
        self._names = tuple(self._converted(self._numbers(mapping.action, first)))
        self._low, self._high = self._bounds()
        self.schema = row_schema(mapping.task, fields, self._names, mapping.control_rate_hz)
        self.metadata: Mapping[str, Any] = {
            "imported_from": dataset.kind,
            "action_convention": mapping.action_convention,
            "action_range": [self._low.tolist(), self._high.tolist()],
        }
        self._notes = self._checked()

    @property
    def report(self) -> list[str]:
        """Lines about what was found and left out; complete after `episodes`."""
        lost = [f"{name} left out: {why}" for name, why in self._lost.items()]
        return [one_line(text) for text in (*self._notes, *self._dataset.notes, *lost)]

    def __len__(self) -> int:
        return self._dataset.counts[self._mapping.episodes]

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes that have a step left; `DatasetError` if a column does not fit."""
        episodes = self._read([*self._mapping.observations], Counter())
        return (episode for _, episode in episodes if len(episode.rows))

    def _checked(self) -> list[str]:
        """Refuse a dataset without usable training data; return lines for the report."""
        states = [name for name in self._mapping.observations if name.startswith("state/")]
        counts: Counter[str] = Counter()
        read = self._read(states or [*self._mapping.observations], counts)
        found = [(action, episode.success and len(episode.rows)) for action, episode in read]
        notes = [f"{count:,} {what}" for what, count in counts.items() if count]
        if not found or not any(success for _, success in found):
            raise DatasetError(
                f"none of the {len(self)} demonstrations is a success by {self._mapping.success!r}",
                got="; ".join(notes) or None,
                expected="at least one to learn from",
                hint=f"correct success in {self._file}",
            )
        actions = np.concatenate([action for action, _ in found])
        low, high = actions.min(axis=0), actions.max(axis=0)
        beyond = (np.abs(actions) > 1.0 + _ROUNDING).mean(axis=0)
        worst = int(beyond.argmax())
        if beyond[worst] > _MOST_BEYOND:
            raise SchemaMismatch(
                f"the action column {self._names[worst]!r} is not between action_low and"
                f" action_high in {beyond[worst]:.0%} of the steps",
                got=f"{low[worst]:.4g} to {high[worst]:.4g} of -1 to 1",
                expected=f"actions by the convention {self._mapping.action_convention!r}",
                hint=f"correct action_convention, action_low or action_high in {self._file}",
            )
        ranges = (f"{name} {low[i]:.3g} to {high[i]:.3g}" for i, name in enumerate(self._names))
        return [self._dataset.kind, f"actions, of -1 to 1: {', '.join(ranges)}", *notes]

    def _read(self, names: Sequence[str], counts: Counter[str]) -> Iterator[tuple[Array, Episode]]:
        """Yield each episode with its scaled actions (T, d); without rows if no step is left."""
        given = self._dataset.episodes(self._columns(names), self._mapping.episodes)
        for number, episode in enumerate(given):
            if episode.unreadable:
                whys = sorted({*episode.unreadable.values()})
                self._lost.setdefault(episode.name, "; ".join(whys))
                continue
            try:
                action, rows, success = self._rows(episode.columns, names, counts)
                self.schema.check(rows)
            except (SchemaMismatch, PictureError, ValueError) as error:
                problem, _, _ = str(error).partition(";")  # without the array
                raise DatasetDamaged(
                    f"episode {number} cannot be imported: {problem}",
                    hint=f"leave it out or repair it, or correct {self._file}",
                ) from error
            counts["episodes without a step left out"] += not len(rows)
            text = episode.instruction
            yield action, Episode(rows, number, text, success, SOURCE_DEMONSTRATION)

    def _columns(self, observations: Iterable[str]) -> set[str]:
        """Dataset columns for these observations and the other fields of a row."""
        mapping = self._mapping
        named: list[Any] = [mapping.observations[name] for name in observations]
        named += [mapping.action, mapping.reward, mapping.terminated]
        named.append(mapping.success.removeprefix(ANY))
        return {name for value in named for name, _ in parts(value)} & {*self._dataset.columns}

    def _rows(
        self, values: Mapping[str, Array], observations: Sequence[str], counts: Counter[str]
    ) -> tuple[Array, Array, bool]:
        """Return the scaled actions (T, d) before clipping, the rows, and the success."""
        raw = self._numbers(self._mapping.action, values)
        stop, reward, ended, success = self._judged(values, len(raw))
        moved = np.stack(list(self._converted(raw[:stop]).values()), axis=1)
        action = 2.0 * (moved - self._low) / (self._high - self._low) - 1.0
        count, start = len(action), stop - len(action)
        counts["steps after an end left out"] += len(raw) - stop
        counts["first steps left out: their absolute action has none before it"] += start
        if not count:
            return action, np.zeros(0, self.schema.dtype), False
        seen = {name: self._seen(name, values)[start:] for name in observations}
        shortest = min(map(len, seen.values()))
        if shortest < count:
            raise SchemaMismatch(f"the episode has {shortest} observations for {count} actions")
        rows = np.zeros(count + (shortest > count), self.schema.dtype)
        for name, column in seen.items():
            rows[name] = column[: len(rows)]
        for field in self.schema.fields:
            if field.holds_poses and field.name in seen:
                rows[field.name] = rotations.continuous(rows[field.name])
        rows["episode_step"] = steps = np.arange(len(rows))
        rows["stamp_observation"] = steps * round(1e9 / self._mapping.control_rate_hz)
        rows["is_last"] = steps == count
        acting = rows[:count]
        acting["stamp_action"] = acting["stamp_observation"]
        acting["action"] = acting["policy_action"] = np.clip(action, -1.0, 1.0)
        acting["clamped"] = beyond = (np.abs(action) > 1.0 + _ROUNDING).any(axis=1)
        counts["actions limited to their bounds"] += int(beyond.sum())
        for name, column in (("reward", reward), ("terminated", ended), ("success", success)):
            acting[name] = column[start:stop]
        rows[LAST_COMMAND][:1, gripper_columns(self._names)] = GRIPPER_OPEN
        rows[LAST_COMMAND][1:] = rows["action"][:-1]
        cut = not acting["terminated"][-1]
        if shortest > count:
            acting["truncated"][-1] = cut
        else:
            counts["last steps left out: nobody recorded what followed"] += cut
            closed = close_episode(rows, self.schema.observation_names)
            rows = rows[:0] if closed is None else closed
        return action, rows, bool(success[stop - 1])

    def _judged(self, values: Mapping[str, Array], count: int) -> tuple[int, Array, Array, Array]:
        """Number of steps up to the end; reward, termination and success (count,) of each."""
        mapping = self._mapping

        def outcome(name: str) -> Array:
            # With T + 1 values, as in Minari's infos, the first belongs to the reset.
            return self._numbers(name, values)[-count:, 0]

        ended = np.zeros(count, np.bool_)
        if mapping.terminated not in (NEVER, SUCCESS):
            ended = outcome(mapping.terminated) != 0
        if mapping.success == ALL:
            success = np.arange(count) == (ended.argmax() if ended.any() else count - 1)
        elif mapping.success == TERMINATED:
            success = ended
        else:
            success = outcome(mapping.success.removeprefix(ANY)) != 0
        if mapping.success.startswith(ANY):
            success = np.maximum.accumulate(success)
        if mapping.terminated == SUCCESS:
            ended = success
        reward = success if mapping.reward == SUCCESS else outcome(mapping.reward)
        return int(ended.argmax()) + 1 if ended.any() else count, reward, ended, success

    def _converted(self, raw: Array) -> dict[str, Array]:
        mapping, period, raw = self._mapping, 1.0 / self._mapping.control_rate_hz, raw.astype(float)
        return converted(raw, mapping.action_names, mapping.action_convention, period)

    def _numbers(self, named: Any, values: Mapping[str, Array]) -> Array:
        """The numbers (T, n) or (T + 1, n) of one or more columns, concatenated."""
        columns = []
        for name, numbers in parts(named):
            column = values[name]
            if is_picture(column):
                raise SchemaMismatch(
                    f"{self._file}: {name} is a picture, and no row of numbers",
                    got=f"{column.dtype} {column.shape[1:]}",
                    hint=f"name it images/CAMERA: {name}",
                )
            columns.append(column.reshape(len(column), -1)[:, numbers])
        count = min(map(len, columns))
        side_by_side = np.concatenate([column[:count] for column in columns], axis=1)
        if not side_by_side.size:
            raise SchemaMismatch(f"{named} names no number", hint=f"correct {self._file}")
        return side_by_side

    def _seen(self, name: str, values: Mapping[str, Array]) -> Array:
        """An observation (T, ...) or (T + 1, ...) in the format of its field."""
        named = self._mapping.observations[name]
        if re.fullmatch(r"state(/[\w-]+)+", name):
            numbers = self._numbers(named, values).astype(np.float32)
            if name != OBJECT_POSES:
                return numbers
            if numbers.shape[1] % 7:
                raise SchemaMismatch(
                    f"{self._file}: {name!r} cannot be an observation",
                    got=f"{named}, {numbers.shape[1]} numbers",
                    expected="7 for each object: x, y, z and a quaternion xyzw",
                )
            return numbers.reshape(len(numbers), -1, 7)
        column = values.get(str(named))
        if column is None or not re.fullmatch(r"images(/[\w-]+)+", name):
            raise SchemaMismatch(
                f"{self._file}: {name!r} cannot be an observation",
                got=named if column is None else f"{named}, {column.dtype} {column.shape[1:]}",
                expected="state/NAME, or images/CAMERA of one whole column",
            )
        try:
            if name not in self._forms:
                self._forms[name] = camera_form(name, column)
            return as_camera(name, column, self._forms[name])
        except PictureError as error:
            raise SchemaMismatch(
                f"{self._file}: {name!r} cannot be an observation: {error}",
                got=f"{named}, {column.dtype} {column.shape[1:]}",
            ) from error

    def _bounds(self) -> Array:
        """The values (2, d) that map to -1 and 1."""
        given = [self._mapping.action_low, self._mapping.action_high]
        with suppress(TypeError, ValueError):
            shape = len(self._names)
            bounds = np.stack([np.broadcast_to(np.asarray(b, np.float64), shape) for b in given])
            if np.isfinite(bounds).all() and (bounds[0] != bounds[1]).all():
                return bounds
        raise SchemaMismatch(
            f"{self._file}: action_low or action_high is not right",
            got=given,
            expected=f"two numbers that differ, or two for each of {', '.join(self._names)}",
        )


def converted(
    values: Array, names: Sequence[str | None], convention: str, period: float
) -> dict[str, Array]:
    """Convert foreign actions (T, c) to our columns, unscaled; an arm's become target steps.

    With absolute poses the first is left out: the pose before it was not recorded.

    Args:
        values: A column for each name.
        names: Names of the columns; None leaves a column out.
        convention: One of `CONVENTIONS`; the mapping file explains them.
        period: Period of the control loop [s].

    Returns:
        Our columns, (T,) each, or (T - 1,) for absolute poses; m and rad for an arm.

    Raises:
        SchemaMismatch: The convention has no such names.
    """
    kept = [name for name in names if name is not None]
    if len(names) != values.shape[1] or not 0 < len(kept) == len(set(kept)):
        raise SchemaMismatch(
            "the action needs one name for each of its columns, all different",
            got=f"{len(names)}: {names}",
            expected=values.shape[1],
        )
    columns = {
        f"action_{i}" if convention == ENVIRONMENT else name: values[:, i]
        for i, name in enumerate(names)
        if name is not None
    }
    if convention not in CONVENTIONS[2:]:
        return columns
    absolute, factor = convention == ABSOLUTE, period if convention == RATES else 1.0
    found: dict[str, Array] = {}
    for name, column in columns.items():
        arm, slash, part = name.rpartition("/")
        parts = next((parts for parts in _TURNS if part in parts), ())
        turn = [f"{arm}{slash}{part}" for part in parts]
        if part in _POSITION:
            found[name] = np.diff(column) if absolute else column * factor
        elif part == GRIPPER_ACTION:  # a position in every convention
            found[name] = column[1:] if absolute else column
        elif not parts or not {*turn} <= {*columns} or (len(parts) == 4 and convention == RATES):
            raise SchemaMismatch(
                f"an arm's action by the convention {convention!r} has no {name!r} alone",
                expected=f"{', '.join(_POSITION)}, {GRIPPER_ACTION}, and for a rotation all of"
                f" {' or of '.join(', '.join(parts) for parts in _TURNS)} (of no rates)",
                hint="rename it in action_names, or correct action_convention",
            )
        else:
            poses = np.stack([columns[part] for part in turn], axis=1)
            turns = _TURNS[parts](poses if len(parts) == 4 else poses * factor)
            vectors = (turns[1:] * turns[:-1].inv() if absolute else turns).as_rotvec()
            axes = (f"{arm}{slash}{axis}" for axis in _ROTATION)
            found |= dict(zip(axes, vectors.T, strict=True))
    return found
