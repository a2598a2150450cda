"""Foreign episodes as rows: the one place that acts on a mapping file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data.episodes import DatasetDamaged, DatasetError, Episode
from robot_rl.data.foreign import ForeignDataset
from robot_rl.data.foreign.actions import converted
from robot_rl.data.foreign.mapping import (
    ALL,
    ANY,
    NEVER,
    SUCCESS,
    TERMINATED,
    parts,
    read_mapping,
)
from robot_rl.data.schema import (
    LAST_COMMAND,
    SOURCE_DEMONSTRATION,
    Array,
    Field,
    SchemaMismatch,
    row_schema,
)
from robot_rl.data.transfer import close_episode
from robot_rl.env.robot import GRIPPER_OPEN, gripper_columns

# Beyond the bounds by rounding; and the share of steps beyond them from which on the bounds, or
# the convention, cannot be right.
_ROUNDING, _MOST_BEYOND = 1e-4, 0.05


class MappedEpisodes:
    """The episodes of a foreign dataset as a mapping file says. See `EpisodeSource`.

    An episode ends at its first step that terminated. Where nobody recorded what followed the last
    action, `close_episode` says what becomes of it. The first `last_command` is that of an arm at
    rest with open grippers.

    Args:
        dataset: The foreign dataset.
        file: The mapping file.

    Attributes:
        report: After `episodes`: what was found and dropped, in lines for a person.

    Raises:
        RobotRLError: The mapping does not fit the dataset.
    """

    def __init__(self, dataset: ForeignDataset, file: Path) -> None:
        self._dataset, self._file = dataset, file
        self._mapping = mapping = read_mapping(file, dataset)
        told = (mapping.action, mapping.reward, mapping.terminated, mapping.success)
        named = {
            name
            for value in (*told, *mapping.observations.values())
            for name, _ in parts(value.removeprefix(ANY) if isinstance(value, str) else value)
        }
        self._columns = named & {*dataset.columns}
        first, _ = next(dataset.episodes(self._columns))
        seen = {name: self._seen(name, first) for name in mapping.observations}
        fields = [Field(name, a.dtype.name, a.shape[1:]) for name, a in seen.items()]
        self._names = tuple(self._converted(self._action(first)))
        self._low, self._high = (
            self._bound(key, vars(mapping)[key]) for key in ("action_low", "action_high")
        )
        if (self._low == self._high).any():
            raise SchemaMismatch(f"{file}: action_low and action_high are equal in a column")
        self.schema = row_schema(mapping.task, fields, self._names, mapping.control_rate_hz)
        self.metadata: Mapping[str, Any] = {
            "imported_from": dataset.kind,
            "action_convention": mapping.action_convention,
            "action_range": [self._low.tolist(), self._high.tolist()],
        }
        self.report: list[str] = []

    def __len__(self) -> int:
        return self._dataset.count

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes that have a step left.

        Raises:
            DatasetError: A column cannot be read, or does not fit the others; or at the end: no
                episode was successful.
            SchemaMismatch: At the end: the actions are not within their bounds.
        """
        dropped: Counter[str] = Counter()
        actions, successes = [], 0
        for number, (values, instruction) in enumerate(self._dataset.episodes(self._columns)):
            try:
                action, rows, success = self._rows(values, dropped)
                self.schema.check(rows)
            except (SchemaMismatch, ValueError) as error:
                problem, _, _ = str(error).partition(";")  # without the array
                raise DatasetDamaged(
                    f"episode {number} cannot be imported: {problem}",
                    hint=f"leave it out or mend it, or correct {self._file}",
                ) from error
            actions.append(action)
            if len(rows) > 1:
                successes += success
                yield Episode(rows, number, instruction, success, SOURCE_DEMONSTRATION)
            else:
                dropped["episodes without a step"] += 1
        if not successes:
            raise DatasetError(
                f"none of the {len(self)} demonstrations is a success by {self._mapping.success!r}",
                expected="at least one to learn from",
                hint=f"correct success in {self._file}",
            )
        self._check_actions(np.concatenate(actions))
        self.report += [f"{what}: {count:,}" for what, count in dropped.items() if count]

    def _rows(
        self, values: Mapping[str, Array], dropped: Counter[str]
    ) -> tuple[Array, Array, bool]:
        """Make an episode's rows, which are one or none where no step is left.

        Returns:
            The scaled actions (T, d) before they are limited, the rows, and the success.
        """
        raw = self._action(values)
        stop, reward, ended, success = self._judged(values, len(raw))
        moved = np.stack(list(self._converted(raw[:stop]).values()), axis=1)
        action = 2.0 * (moved - self._low) / (self._high - self._low) - 1.0
        count, start = len(action), stop - len(action)
        dropped["steps after an end"] += len(raw) - stop
        dropped["first steps, whose absolute action has none before it"] += start
        seen = {name: self._seen(name, values)[start:] for name in self._mapping.observations}
        shortest = min(map(len, seen.values()))
        if shortest < count:
            raise SchemaMismatch(f"it has {shortest} observations for {count} actions")
        rows = np.zeros(count + (shortest > count), self.schema.dtype)
        for name, column in seen.items():
            rows[name] = column[: len(rows)]
        rows["episode_step"] = steps = np.arange(len(rows))
        rows["stamp_observation"] = steps * round(1e9 / self._mapping.control_rate_hz)
        rows["is_last"] = steps == count
        acting = rows[:count]
        acting["stamp_action"] = acting["stamp_observation"]
        acting["action"] = acting["policy_action"] = np.clip(action, -1.0, 1.0)
        acting["clamped"] = beyond = (np.abs(action) > 1.0 + _ROUNDING).any(axis=1)
        dropped["steps whose action was limited to its bounds"] += int(beyond.sum())
        for name, told in (("reward", reward), ("terminated", ended), ("success", success)):
            acting[name] = told[start:stop]
        rows[LAST_COMMAND][:1, gripper_columns(self._names)] = GRIPPER_OPEN
        rows[LAST_COMMAND][1:] = rows["action"][:-1]
        reached = bool(success[:stop][-1])
        if not count:
            return action, rows[:0], reached
        if shortest > count:
            acting["truncated"][-1] = not acting["terminated"][-1]
            return action, rows, reached
        if not acting["terminated"][-1]:
            dropped["last steps, of which nobody recorded what followed"] += 1
        closed = close_episode(rows, self.schema.observation_names)
        return action, rows[:0] if closed is None else closed, reached

    def _judged(self, values: Mapping[str, Array], count: int) -> tuple[int, Array, Array, Array]:
        """Number of steps up to the end, and reward, termination and success (count,) of each."""
        mapping = self._mapping

        def told(name: str) -> Array:
            # What each step caused: of T + 1 values, as Minari's infos have, the reset's is first.
            return self._numbers(name, values)[-count:, 0]

        ended = np.zeros(count, np.bool_)
        if mapping.terminated not in (NEVER, SUCCESS):
            ended = told(mapping.terminated) != 0
        last = np.arange(count) == (ended.argmax() if ended.any() else count - 1)
        if mapping.success in (ALL, TERMINATED):
            success = last if mapping.success == ALL else ended
        else:
            success = told(mapping.success.removeprefix(ANY)) != 0
        if mapping.success.startswith(ANY):
            success = np.maximum.accumulate(success)
        if mapping.terminated == SUCCESS:
            ended = success
        reward = success if mapping.reward == SUCCESS else told(mapping.reward)
        return int(ended.argmax()) + 1 if ended.any() else count, reward, ended, success

    def _action(self, values: Mapping[str, Array]) -> Array:
        return self._numbers(self._mapping.action, values).astype(np.float64)

    def _converted(self, raw: Array) -> dict[str, Array]:
        mapping, period = self._mapping, 1.0 / self._mapping.control_rate_hz
        return converted(raw, mapping.action_names, mapping.action_convention, period)

    def _numbers(self, named: Any, values: Mapping[str, Array]) -> Array:
        """The numbers (T, n) or (T + 1, n) of one or more columns, side by side."""
        columns = [(values[name], numbers) for name, numbers in parts(named)]
        count = min(len(column) for column, _ in columns)
        flat = [column[:count].reshape(count, -1)[:, numbers] for column, numbers in columns]
        numbers = np.concatenate(flat, axis=1)
        if not numbers.size:
            raise SchemaMismatch(f"{named} names no number", hint=f"correct {self._file}")
        return numbers

    def _seen(self, name: str, values: Mapping[str, Array]) -> Array:
        """An observation (T, ...) or (T + 1, ...), as its field has it."""
        named = self._mapping.observations[name]
        if re.fullmatch(r"state(/[\w-]+)+", name):
            return self._numbers(named, values).astype(np.float32)
        pictures = values.get(str(named), np.zeros(0))
        if pictures.ndim == 4 and pictures.shape[1] == 3 != pictures.shape[3]:
            pictures = np.moveaxis(pictures, 1, 3)
        is_camera = re.fullmatch(r"images(/[\w-]+)+", name)
        if pictures.dtype != np.uint8 or pictures.shape[3:] != (3,) or not is_camera:
            raise SchemaMismatch(
                f"{self._file}: {name!r} cannot be an observation",
                got=f"{named}, {pictures.dtype} {pictures.shape[1:]}",
                expected="state/NAME, or images/CAMERA of a column uint8 (height, width, 3)",
            )
        return pictures

    def _bound(self, key: str, told: Any) -> Array:
        """A bound of each action column (d,)."""
        try:
            bound = np.broadcast_to(np.asarray(told, np.float64), len(self._names))
            if np.isfinite(bound).all():
                return bound
        except (TypeError, ValueError):
            pass
        expected = f"a number, or one for each of {', '.join(self._names)}"
        raise SchemaMismatch(f"{self._file}: {key} is not right", got=told, expected=expected)

    def _check_actions(self, actions: Array) -> None:
        """Report the ranges of actions (steps, d), and refuse those of another convention."""
        low, high = actions.min(axis=0), actions.max(axis=0)
        spans = zip(self._names, low, high, strict=True)
        told = ", ".join(f"{name} {least:.3g} to {most:.3g}" for name, least, most in spans)
        self.report = [f"actions, of -1 to 1: {told}"]
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
