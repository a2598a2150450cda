"""`robot-rl collect`, `pretrain`, `collect-reward` and `train-reward`: stages of recipes, alone."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from robot_rl.commands.gym_check import try_environment
from robot_rl.commands.nodes import check_robot, robot_nodes
from robot_rl.commands.runs import working_run
from robot_rl.config import ConfigError
from robot_rl.learning.demonstrations import check_demonstrations
from robot_rl.learning.recipe import Recipe, Stage
from robot_rl.learning.stages.clone import Clone, check_unused
from robot_rl.learning.stages.collect import Collect
from robot_rl.learning.stages.collect_reward import CollectReward
from robot_rl.learning.stages.dagger import Dagger
from robot_rl.learning.stages.reward import Reward
from robot_rl.learning.stages.vision import Vision
from robot_rl.rewards.wrapper import make_source
from robot_rl.run import CLONED, RunDirectory


def collect(config: DictConfig) -> None:
    """Record demonstrations into a new run directory, or go on in that of `run`."""
    check_robot(config)  # what cannot work is said before anything is made
    try_environment(config)
    recipe, names = _checked(config, Collect)
    with (
        working_run(config) as directory,
        directory.claim("train"),
        robot_nodes(config, directory.path / "logs"),
    ):
        for name in names:
            recipe.perform(name, directory)
        print(f"written to {directory.demonstrations}", flush=True)


def pretrain(config: DictConfig) -> None:
    """Clone the demonstrations of `run`, or of `dataset` into a new run directory."""
    try_environment(config)
    recipe, names = _checked(config, Vision, Clone, Dagger)
    if config.run:
        check_demonstrations(config, RunDirectory.open(config.run, config.runs_directory))
    else:
        check_sources(config)
    with working_run(config) as directory, directory.claim("train"):
        check_unused(config, directory)
        for name in names:
            recipe.perform(name, directory)
        print(f"written to {directory.path / CLONED}", flush=True)


def collect_reward(config: DictConfig) -> None:
    """Record frames of success and of failure into a new run, or go on in `run`."""
    try_environment(config)
    _alone(config, CollectReward)


def train_reward(config: DictConfig) -> None:
    """Train a success classifier on the examples of `run`."""
    _alone(config, Reward)


def check_sources(config: DictConfig) -> None:
    """Check what a new run reads from elsewhere, and note where that is from any folder.

    Raises:
        RobotRLError: The demonstrations or the reward's model do not fit, or cannot be read.
    """
    if config.dataset:
        # Resolved: the run is gone on with from other folders too, and will be the latest itself.
        config.dataset = str(Path(config.dataset).resolve())
        check_demonstrations(config, None)
    if "path" in config.reward.source:
        path = Path(config.reward.source.path)
        # But for its last part, which is a link to the newest generation.
        config.reward.source.path = str(path.parent.resolve() / path.name)
    make_source(config)


def _alone(config: DictConfig, kind: type[Stage]) -> None:
    recipe, names = _checked(config, kind)
    with working_run(config) as directory, directory.claim("train"):
        for name in names:
            recipe.perform(name, directory)


def _checked(config: DictConfig, *kinds: type[Stage]) -> tuple[Recipe, list[str]]:
    """The recipe, and the names in it of the wanted stages of these kinds, which it need not have.

    Raises:
        RobotRLError: One of them could not do its work.
    """
    recipe, names = Recipe(config), []
    for kind in kinds:
        own = [name for name, stage in recipe.stages.items() if isinstance(stage, kind)]
        if not own and (stage := kind()).wanted(config):
            own = [kind.__name__]
            recipe.stages[own[0]] = stage
        names += own
    if not names:
        got = f"demonstrations={config.demonstrations}, dataset={config.dataset}"
        raise ConfigError("there is nothing to do", got=got, hint="leave these out")
    for name in names:
        recipe.stages[name].check(config)
    return recipe, names
