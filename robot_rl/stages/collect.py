"""`robot-rl collect`: demonstrations by the task's scripted expert."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from omegaconf import DictConfig

from robot_rl.config import save_resolved
from robot_rl.data.episodes import DatasetError, EpisodeDataset, EpisodeWriter
from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import SOURCE_DEMONSTRATION
from robot_rl.env.factory import make_env, make_expert
from robot_rl.env.rollout import rollout, training_seed
from robot_rl.env.task import Expert
from robot_rl.errors import RobotRLError
from robot_rl.progress import WorkProgress
from robot_rl.run import RunDirectory
from robot_rl.stages.nodes import robot_nodes

SEED_STREAM = 0
_MOST_FAILURES = 200
_MOST_ATTEMPTS = 100_000


class ExpertFails(RobotRLError):
    """The scripted expert does not solve the task."""


class ExpertDecision(NamedTuple):
    """What the expert decided for the one slot; see `robot_rl.data.rows.Decision`."""

    action: npt.NDArray[np.float32]
    base_action: npt.NDArray[np.float32]
    chunk_index: npt.NDArray[np.int16]
    version: npt.NDArray[np.int64]
    features: Mapping[str, npt.NDArray[Any]]


class ExpertController:
    """Lets a scripted expert decide in the one environment whose true state it sees.

    Args:
        expert: The expert.
        action_dimension: Number of action columns d.
    """

    def __init__(self, expert: Expert, action_dimension: int) -> None:
        """See the class."""
        self._expert = expert
        self._rng = np.random.default_rng(0)
        self._zero = np.zeros((1, action_dimension), np.float32)

    def reset(
        self,
        slots: Sequence[int] | None = None,
        *,
        seeds: Sequence[int],
        instructions: Sequence[str] | None = None,
    ) -> None:
        """Begin an episode; the expert knows the goal without an instruction."""
        self._rng = np.random.default_rng(seeds[0])
        self._expert.reset(self._rng)

    def act(
        self,
        observation: Mapping[str, npt.NDArray[Any]],
        active: npt.NDArray[np.bool_] | None = None,
    ) -> ExpertDecision:
        """Decide from the true state; the observation is not needed."""
        return self._decision(self._expert.act(self._rng)[None])

    def conclude(
        self,
        observation: Mapping[str, npt.NDArray[Any]],
        active: npt.NDArray[np.bool_] | None = None,
    ) -> ExpertDecision:
        """Nothing: an expert has no base."""
        return self._decision(self._zero)

    def _decision(self, action: npt.NDArray[np.float32]) -> ExpertDecision:
        return ExpertDecision(
            action, self._zero, np.zeros(1, np.int16), np.zeros(1, np.int64), features={}
        )


def collect(config: DictConfig, run: RunDirectory, progress: WorkProgress) -> EpisodeDataset:
    """Record demonstrations until the wanted number has succeeded; failures are not kept.

    A recording that was interrupted goes on where it stopped: the episodes are numbered, and
    their seeds follow from the run's seed and their number.

    Args:
        config: The configuration.
        run: Where to write.
        progress: Where to show how far it is.

    Raises:
        ExpertFails: It failed 200 times in a row.
        StorageFull: The disk is full; what was recorded before is kept.
    """
    env = make_env(config)
    recorder = RowBuilder(env.schema, SOURCE_DEMONSTRATION)
    controller = ExpertController(make_expert(config, env), env.schema.action_dimension)
    wanted = int(config.demonstrations)
    seed = int(config.seed)
    with EpisodeWriter(run.demonstrations, env.schema, {"robot": config.choices.robot}) as writer:
        known = EpisodeDataset(run.demonstrations).seeds.tolist()
        first = attempts = _attempts_behind(known, seed)
        seeds = (training_seed(seed, SEED_STREAM, number) for number in itertools.count(first))
        failures = 0
        while len(writer) < wanted:
            result = next(rollout([env], controller, seeds, recorder=recorder))
            attempts += 1
            progress.episode(result.success)
            failures = 0 if result.success else failures + 1
            if failures == _MOST_FAILURES:
                raise ExpertFails(
                    f"the scripted expert has failed {failures} times in a row",
                    got=f"{len(writer)} demonstrations in {attempts} attempts",
                    hint="make the task or the expert's imperfections easier",
                )
            if result.success:
                writer.append(
                    result.rows,
                    seed=result.seed,
                    instruction=env.task.instruction,
                    success=True,
                    source=SOURCE_DEMONSTRATION,
                )
                progress.update(len(writer))
    env.close()
    if attempts > first:
        progress.note(
            f"collected {wanted} demonstrations of {config.task.name} in {attempts} attempts"
            f" ({100 * wanted / attempts:.0f} % succeeded)"
        )
    return EpisodeDataset(run.demonstrations)


def run(config: DictConfig) -> None:
    """Collect into a new run directory, or go on in that of `run`."""
    if config.run:
        directory = RunDirectory.open(config.run, config.runs_directory)
    else:
        directory = RunDirectory.create(config.task.name, config.runs_directory)
        save_resolved(config, directory.path)
    with (
        directory.claim("train"),
        robot_nodes(config, directory.path / "logs"),
        WorkProgress(int(config.demonstrations), "demonstrations") as progress,
    ):
        progress.phase("collecting")
        collect(config, directory, progress)
        progress.note(f"written to {directory.demonstrations}")


def _attempts_behind(seeds: Sequence[int], run_seed: int) -> int:
    """Number of the attempt after the last recorded one."""
    if not seeds:
        return 0
    for number in range(_MOST_ATTEMPTS):
        if training_seed(run_seed, SEED_STREAM, number) == seeds[-1]:
            return number + 1
    raise DatasetError(
        "the last demonstration was not recorded with this run's seed",
        got=f"seed {seeds[-1]} of the episode",
        expected=f"one that follows from seed={run_seed}",
        hint="use them as they are, in a new run, with dataset=PATH",
    )
