"""The demonstrations that a run learns from."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from robot_rl.data.episodes import EpisodeDataset
from robot_rl.env.factory import make_env
from robot_rl.errors import RobotRLError
from robot_rl.run import RunDirectory


def open_demonstrations(config: DictConfig, run: RunDirectory | None) -> EpisodeDataset:
    """Open the demonstrations of `dataset`, or of the run. No robot is made.

    Args:
        config: The configuration.
        run: The run directory; not needed where `dataset` names the demonstrations.

    Raises:
        SchemaMismatch: They are of another schema version.
        RobotRLError: There are none, or none that succeeded.
    """
    path = Path(str(config.dataset)) if config.dataset or run is None else run.demonstrations
    if not path.exists():
        raise RobotRLError(
            "there are no demonstrations",
            got=f"nothing at {path}",
            hint="record some with: robot-rl collect; or name some with dataset=PATH",
        )
    dataset = EpisodeDataset(path)
    if not dataset.successes.any():
        raise RobotRLError(
            f"none of the demonstrations in {path} is successful",
            got=f"{len(dataset)} episodes",
            expected="at least one to learn from",
        )
    return dataset


def check_demonstrations(config: DictConfig, run: RunDirectory | None) -> None:
    """Check that the demonstrations fit the task and the robot, which is made for this alone.

    Args:
        config: The configuration.
        run: As in `open_demonstrations`.

    Raises:
        SchemaMismatch: They are of another task, shape, rate or schema version.
        RobotRLError: There are none, or none that succeeded.
    """
    dataset = open_demonstrations(config, run)
    env = make_env(config)
    env.close()
    dataset.expect(env.schema)
