"""The evidence that `robot-rl explain` checks; the run may be in progress.

A check is a function of the evidence. It returns a `Cause` with the measured figure, or None if it
has no data. Thresholds are wide: a check reports only figures for which a person would stop the
run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from omegaconf import DictConfig, OmegaConf

from robot_rl.data.episodes import EpisodeDataset, steps_to_success
from robot_rl.data.schema import SOURCE_DEMONSTRATION, SOURCE_POLICY, RowSchema
from robot_rl.env.robot import ARM_ACTIONS, gripper_columns, joint_columns
from robot_rl.errors import RobotRLError
from robot_rl.evaluation.ledger import deployed_policy
from robot_rl.evaluation.records import RunRecords, read_run
from robot_rl.replay.catalogue import is_store
from robot_rl.replay.store_reader import StoreReader
from robot_rl.run import RunDirectory, resolved_settings
from robot_rl.safety import rotations

Vector = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[Any]  # structured, one episode including its final row

_ROWS = 6000  # maximum: the latest for actors, the first for demonstrations
_PICTURES, _FILMED = 40, 3  # images per episode, and episodes with images
_LAGS = 8  # steps within which an action may take effect


@dataclass(frozen=True)
class Motion:
    """The robot's response to commands, by least squares over many steps.

    The response (lags, d, d) is the motion along column i, caused by an action of 1 in column j,
    after each number of steps, as a fraction of the commanded motion.
    """

    names: tuple[str, ...]  # action columns whose motion is measured
    response: Vector
    error: Vector  # (d, d) standard error of `gain`

    @property
    def gain(self) -> Vector:
        """Response summed over all lags (d, d): [commanded, moved]."""
        return np.asarray(self.response.sum(0))

    @property
    def lag(self) -> float:
        """Steps until half of the motion is done, over the columns that follow commands."""
        own = np.diagonal(self.response, axis1=1, axis2=2).cumsum(0)  # (lags, d)
        moved = own[:, np.abs(own[-1]) > np.maximum(0.3, 4.0 * np.diag(self.error))]
        if not moved.size:
            return 0.0
        return float(np.median(np.argmax(moved / moved[-1] >= 0.5, axis=0)))


@dataclass(frozen=True)
class Origin:
    """The episodes of one origin: demonstrated, or acted by the policy."""

    episodes: list[Rows] = field(default_factory=list)
    # Per camera: some episodes, each with its first images (n, H, W, 3).
    pictures: Callable[[str], list[tuple[Rows, npt.NDArray[np.uint8]]]] = lambda camera: []

    def __len__(self) -> int:
        return len(self.episodes)

    def column(self, name: str, *, last: bool = True) -> Vector:
        """Values (n, width) of a column in float64, with or without the final rows."""
        cut = None if last else -1
        parts = [e[name][:cut].reshape(len(e[name][:cut]), -1) for e in self.episodes]
        return np.concatenate(parts).astype(np.float64) if parts else np.empty((0, 0))

    def each(self, name: str) -> Iterator[Vector]:
        """Yield values (T + 1, width) of a column for each episode."""
        for episode in self.episodes:
            yield episode[name].reshape(len(episode), -1).astype(np.float64)

    def has(self, name: str) -> bool:
        """Whether there are rows with this column."""
        return bool(self.episodes) and name in (self.episodes[0].dtype.names or ())

    @cached_property
    def lengths(self) -> Vector:
        """Steps of each episode."""
        return np.array([len(e) - 1 for e in self.episodes], float)

    @cached_property
    def steps_to_success(self) -> Vector:
        """Steps to the first success of each successful episode, which may continue after it."""
        return np.array(steps_to_success(e["success"] for e in self.episodes), float)

    @cached_property
    def succeeded(self) -> npt.NDArray[np.bool_]:
        """Success of each episode."""
        return np.array([bool(e["success"].any()) for e in self.episodes])


@dataclass(frozen=True)
class Evidence:
    """The records and the latest rows of a run."""

    run: RunDirectory
    config: DictConfig
    records: RunRecords
    schema: RowSchema | None  # schema of the rows, if any
    demonstrated: int  # number of successful demonstrations
    shown: Origin  # successful demonstrations, or the first of them
    acted: Origin  # latest episodes of the policy
    transitions: int  # actors' environment steps in the store
    gathered: int  # environment steps of a recipe's rounds, if there is no store
    taken: dict[str, Any]  # see `resolved_settings`
    deployed: str | None  # the deployed policy, if any

    def setting(self, key: str, default: Any = None) -> Any:
        """Value of a setting; `default` if it is missing or null."""
        value = OmegaConf.select(self.config, key)
        return default if value is None else value

    @cached_property
    def origins(self) -> dict[str, Origin]:
        """Display name → origin, for the origins that have episodes."""
        named = {"the demonstrations": self.shown, "the policy's episodes": self.acted}
        return {name: origin for name, origin in named.items() if len(origin)}

    @cached_property
    def observed(self) -> list[str]:
        """States that the policy observes and the rows contain."""
        if self.schema is None:
            return []
        named = self.setting("observation.states") or self.setting("task.observation") or []
        there = [n for n in self.schema.observation_names if n.startswith("state/")]
        return [name for name in there if not named or name in named]

    @cached_property
    def grippers(self) -> list[int]:
        """Gripper columns of the action."""
        return gripper_columns(self.schema.action_names) if self.schema else []

    @cached_property
    def discount(self) -> float | None:
        """The discount that the learner used, or that is set; None if unknown."""
        gamma = self.taken.get("discount") or self.setting("algorithm.schedule.discount")
        return None if gamma is None else float(gamma)

    @cached_property
    def motions(self) -> dict[str, Motion]:
        """The robot's response by origin, for arms whose motion is measured."""
        found = {name: self._motion(origin) for name, origin in self.origins.items()}
        return {name: motion for name, motion in found.items() if motion is not None}

    def _motion(self, origin: Origin) -> Motion | None:
        assert self.schema is not None
        names = self.schema.action_names
        joints = joint_columns(names)
        if joints and origin.has("state/joint_positions"):
            moved = [np.diff(p, axis=0) for p in origin.each("state/joint_positions")]
            order, units = list(range(len(joints))), self.setting("robot.joints.step")
        elif not joints and origin.has("state/tcp_pose"):
            moved = [_displacements(p) for p in origin.each("state/tcp_pose")]
            order = [ARM_ACTIONS.index(name) for name in names if name in ARM_ACTIONS]
            steps = self.setting("robot.limits.translation_step")
            turns = self.setting("robot.limits.rotation_step")
            units = None if steps is None or turns is None else [steps] * 3 + [turns] * 3
        else:
            return None
        columns = [names.index(name) for name in names if name in (*ARM_ACTIONS, *joints)]
        if not columns or units is None:
            return None
        steps_of = np.array(units, float)[order]
        return _fitted(
            tuple(names[c] for c in columns),
            [a[:-1, columns] for a in origin.each("action")],
            [m[:, order] / steps_of for m in moved],
            [c[:-1, 0] > 0 for c in origin.each("clamped")],
        )


# Minimum likelihood for a finding to be a cause; below it the check passes.
NAMED = 0.3


@dataclass(frozen=True)
class Cause:
    """The result of a check.

    `likely` sorts the causes: from 0.9 for a broken part, such as a sensor, that makes other parts
    look broken; 0.7 for a setting that prevents learning; 0.4 for a figure that may have another
    cause.
    """

    name: str  # two words
    likely: float  # 0: no problem
    figure: str  # the measurement as text
    # Advice if there is a problem: one fix, or several separated by "; or ". Settings have their
    # full keys; `explain` drops fixes with settings that the run does not have.
    fix: str = ""


Check = Callable[[Evidence], Cause | None]


def percent(share: float) -> str:
    """Format a fraction as a percentage."""
    return f"{100 * float(share):.0f} %"


def _displacements(poses: Vector) -> Vector:
    """Displacement from each pose (T + 1, 7) to the next: translation, rotation vector (T, 6)."""
    norms = np.linalg.norm(poses[:, 3:], axis=1, keepdims=True)
    unit = np.concatenate([poses[:, :3], poses[:, 3:] / np.maximum(norms, 1e-9)], axis=1)
    ways = [rotations.between(a, b) for a, b in itertools.pairwise(unit)]
    return np.array(ways).reshape(-1, 6)


def _fitted(
    names: tuple[str, ...],
    actions: Sequence[Vector],
    moved: Sequence[Vector],
    limited: Sequence[Mask],
) -> Motion | None:
    """Fit motions (T, d) to the commands (T, d) of the same and the preceding steps.

    Steps (T,) in which a limit changed the command are left out.
    """
    d = len(names)
    inputs, outputs = [], []
    for action, way in zip(actions, moved, strict=True):
        padded = np.concatenate([np.zeros((_LAGS - 1, d)), action])  # an episode starts at rest
        lags = [padded[_LAGS - 1 - k : len(padded) - k] for k in range(_LAGS)]
        inputs.append(np.concatenate(lags, axis=1))
        outputs.append(way)
    free = ~np.concatenate(limited)
    x, y = np.concatenate(inputs)[free], np.concatenate(outputs)[free]
    if len(x) < 2 * _LAGS * d:
        return None
    # Slight ridge regularisation: columns that are never commanded get no response.
    ridge = 1e-4 * len(x) * np.eye(x.shape[1])
    inverse = np.linalg.inv(x.T @ x + ridge)
    solution = inverse @ x.T @ y
    # Variance of the sum over all lags, per column.
    spread = inverse.reshape(_LAGS, d, _LAGS, d).sum((0, 2)).diagonal()
    scatter = (y - x @ solution).std(0)
    error = np.sqrt(np.maximum(spread, 0.0))[:, None] * scatter
    return Motion(names, solution.reshape(_LAGS, d, d), error)


def gather(run: RunDirectory, config: DictConfig) -> Evidence:
    """Read the files of a run; unreadable ones count as missing: `inspect` reports them."""
    shown, schema, demonstrated = _demonstrations(run, config)
    acted, found, transitions = _stored(run)
    gathered = 0
    if found is None:
        acted, found, gathered = _gathered(run)
    taken: dict[str, Any] = {}
    deployed = None
    with suppress(RobotRLError, OSError, ValueError):  # it is being replaced by a newer one
        taken = resolved_settings(run)
        deployed = deployed_policy(run) if run.has_policy() else None
    return Evidence(
        run=run,
        config=config,
        records=read_run(run),
        schema=found or schema,
        demonstrated=demonstrated,
        shown=shown,
        acted=acted,
        transitions=transitions,
        gathered=gathered,
        taken=taken,
        deployed=deployed,
    )


def _demonstrations(run: RunDirectory, config: DictConfig) -> tuple[Origin, RowSchema | None, int]:
    """Return successful episodes among the first, their schema, and the number of all successes."""
    path = Path(config.dataset) if config.dataset else run.demonstrations
    try:
        dataset = EpisodeDataset(path)
        count = int(dataset.successes.sum())
        dataset.first(int(np.searchsorted(dataset.episode_ends, _ROWS)) + 1)
        succeeded = np.flatnonzero(dataset.successes).tolist()
        origin = _origin(dataset, _without_pictures(dataset), succeeded, succeeded[:_FILMED])
    except RobotRLError:
        return Origin(), None, 0
    return origin, dataset.schema, count


def _stored(run: RunDirectory) -> tuple[Origin, RowSchema | None, int]:
    """Return the policy's latest episodes in the store, its schema, and all steps in it."""
    if not is_store(run.store):
        return Origin(), None, 0
    episodes: list[Rows] = []
    rows_read = transitions = 0
    with StoreReader(run.store) as reader:
        if reader.empty:
            return Origin(), None, 0
        for record in reversed(reader.episodes()):
            if record.overall_source == SOURCE_DEMONSTRATION:
                continue
            transitions += record.environment_steps
            by_policy = record.overall_source == SOURCE_POLICY
            if by_policy and rows_read < _ROWS and record.rows > 1:
                with suppress(RobotRLError):  # evicted, or truncated
                    episodes.insert(0, reader.read_episode(record))
                    rows_read += len(episodes[0])
        schema = reader.schema

    def pictures(camera: str) -> list[tuple[Rows, Rows]]:
        return [(rows, np.array(rows[camera][:_PICTURES])) for rows in episodes[-_FILMED:]]

    return Origin(episodes, pictures), schema, transitions


def _gathered(run: RunDirectory) -> tuple[Origin, RowSchema | None, int]:
    """As `_stored`, for a recipe that learns without actors and a store."""
    try:
        dataset = EpisodeDataset(run.gathered)
        episodes = _without_pictures(dataset)
    except RobotRLError:
        return Origin(), None, 0
    latest = [
        i
        for i, rows in enumerate(episodes)
        if not rows["intervened"].any() and dataset.episode_ends[i] > dataset.rows_total - _ROWS
    ]
    origin = _origin(dataset, episodes, latest, latest[-_FILMED:])
    return origin, dataset.schema, dataset.rows_total - len(dataset)


def _without_pictures(dataset: EpisodeDataset) -> list[Rows]:
    """Read the rows of each episode in view."""
    scalars = [f for f in dataset.schema.fields if not f.name.startswith("images/")]
    rows = np.empty(dataset.rows_total, [(f.name, f.dtype, f.shape) for f in scalars])
    for each in scalars:
        rows[each.name] = dataset.read(each.name)
    return np.split(rows, dataset.episode_ends[:-1]) if len(dataset) else []


def _origin(
    dataset: EpisodeDataset, episodes: list[Rows], chosen: list[int], filmed: list[int]
) -> Origin:
    def pictures(camera: str) -> list[tuple[Rows, Rows]]:
        return [(episodes[i], dataset.episode(i)[camera][:_PICTURES]) for i in filmed]

    return Origin([episodes[i] for i in chosen], pictures)
