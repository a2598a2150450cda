"""Stage `Explore`: random actions, to find observation and reward ranges without demonstrations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing

from policies.vision import observed_keys
from robot_rl.config import ConfigError, Settings
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.env.factory import make_env, observed_widths
from robot_rl.env.gym import GymRobot
from robot_rl.env.rollout import SeedStream
from robot_rl.errors import RobotRLError
from robot_rl.learning.algorithms import improves_clone
from robot_rl.learning.recipe import Stage
from robot_rl.learning.stages.clone import behaviour_of, for_zeros, untrained
from robot_rl.learning.stages.gather import recorded_steps
from robot_rl.learning.workbench import Workbench
from robot_rl.replay.row_sources import EpisodeRows
from robot_rl.run import EXPLORATION, UNTRAINED, RunDirectory

_AT_RANDOM = "noise", "uniform", 1.0  # noise on the actions


class Explore(Stage):
    """Acts uniformly at random for the warm-up of a run without demonstrations.

    These are the run's first environment steps. They provide the observation and reward ranges that
    otherwise come from demonstrations.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.makes = () if settings.demonstrated else (EXPLORATION, UNTRAINED)

    @property
    def needs(self) -> Sequence[str]:
        """Return no artifacts. Raise `ConfigError` if algorithm or encoder need demonstrations."""
        settings, schedule = self.settings, self.settings.schedule
        learner, word = f"algorithm={settings.choices['algorithm']}", "algorithm=sac"
        offline = schedule.demonstration_share or schedule.offline_updates
        if not offline and not improves_clone(settings.algorithm):
            if not settings.sees and not settings.policy.get("cameras"):
                return ()
            learner, word = f"observation={settings.choices['observation']}", "observation=state"
        raise ConfigError(
            f"{learner} learns from demonstrations",
            got="demonstrations=0",
            hint=f"add {word}, which needs none; or record some",
        )

    def done(self, run: RunDirectory, *, recorded: bool) -> bool:
        """Return whether the untrained policy exists."""
        return run.has_folder(UNTRAINED)

    def run(self, bench: Workbench) -> None:
        """Act at random, and check that the data has a learning signal."""
        settings, run = self.settings, bench.run
        with closing(make_env(settings.environment)) as env:
            schema, longest = env.schema, env.task.time_limit_steps
            has_goals = isinstance(env.robot, GymRobot) and env.robot.has_goals
        acting = for_zeros(settings, schema).exploring(*_AT_RANDOM)
        steps = max(1, settings.schedule.warmup_steps)
        with EpisodeWriter(run.exploration, schema) as writer:
            while (missing := steps - recorded_steps(run.exploration)) > 0:
                done = len(writer)
                count, stream = done + math.ceil(missing / longest), SeedStream.EXPLORATION
                for episode in bench.gather(acting, count, stream, "exploring", done=done):
                    episode.keep(writer, SOURCE_POLICY)
        dataset = EpisodeDataset(run.exploration)
        in_hindsight = has_goals and settings.schedule.hindsight_share > 0
        columns = dataset.arrays(("reward", "terminated", "is_last"))
        taken, won = ~columns["is_last"], int(dataset.successes.sum())
        reward, ended = columns["reward"][taken], columns["terminated"][taken].any()
        low, high = float(reward.min()), float(reward.max())
        found = f"{won} of {len(dataset)} episodes succeeded, rewards from {low:g} to {high:g}"
        if low == high and not ended and not in_hindsight:
            raise RobotRLError(
                "random actions have found nothing to learn from",
                got=f"{found} in {len(reward)} steps",
                hint="explore longer with algorithm.schedule.warmup_steps=5000, take a reward that"
                " grows on the way to success (reward=distance), or learn from demonstrations",
            )
        doubt = "" if won else "; whether one can succeed is not known yet"
        bench.say(f"random actions: {found}{doubt}")
        widths = observed_widths(settings.environment, schema)
        rows = EpisodeRows.of_datasets([dataset], (*widths, "action"))
        policy = untrained(settings, rows, observed_keys(widths, None), bench.generator("explore"))
        first = behaviour_of(policy, schema, settings.execute_steps)
        bench.checkpoint(UNTRAINED, first.exploring(*_AT_RANDOM))
