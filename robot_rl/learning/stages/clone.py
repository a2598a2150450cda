"""The demonstrations, cloned into a policy."""

from __future__ import annotations

from omegaconf import DictConfig

from policies.compute import compute_device
from robot_rl.config import check_least
from robot_rl.learning.cloning import check_unused, clone, save_cloned
from robot_rl.learning.recipe import Stage
from robot_rl.learning.workbench import Workbench
from robot_rl.run import CLONED, DEMONSTRATIONS, VISION, RunDirectory


class Clone(Stage):
    """Clones the demonstrations; with cameras on the features that replay will keep."""

    needs = (DEMONSTRATIONS,)
    makes = (CLONED,)

    def needed(self, config: DictConfig) -> tuple[str, ...]:
        """With cameras their encoder too."""
        return self.needs if config.observation.vision is None else (*self.needs, VISION)

    def check(self, config: DictConfig) -> None:
        """Check numbers, and that there is such a device.

        Raises:
            RobotRLError: A number is out of range, or there is no such device.
        """
        check_least(config, {"cloning.updates": 1, "cloning.batch_size": 1})
        check_least(config, {"policy.horizon": 1, "policy.observation_steps": 1})
        compute_device(config)

    def done(self, config: DictConfig, run: RunDirectory, *, recorded: bool) -> bool:
        """As soon as there is a cloned policy."""
        return run.has_folder(CLONED)

    def run(self, bench: Workbench) -> None:
        """Train and save."""
        check_unused(bench.config, bench.run)
        config, dataset = bench.config, bench.demonstrations()
        vision = bench.policy(VISION).vision if VISION in self.needed(config) else None
        save_cloned(bench, clone(config, [dataset], vision, bench.generator()))
