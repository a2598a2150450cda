"""Success rates over seeded episodes that training never uses, batched over episodes."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Literal

import numpy as np
from omegaconf import DictConfig

from policies.behaviour import Behaviour
from policies.runner import PolicyRunner
from robot_rl.compute import compute_device
from robot_rl.config import on_stepped_clock
from robot_rl.env.factory import make_env
from robot_rl.env.robot_env import RobotEnv, RobotEnvWrapper
from robot_rl.env.rollout import Seeds, rollout
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.signals import Stopped

SeedSet = Literal["periodic", "final"]


class Evaluator:
    """Keeps the environments between evaluations, until it is closed.

    Args:
        config: The configuration; its `evaluation` says how many episodes and which seeds.
    """

    def __init__(self, config: DictConfig) -> None:
        """Make the environments; see the class for the arguments."""
        self._config = config
        episodes = max(config.evaluation.episodes, config.evaluation.final_episodes)
        count = min(int(config.evaluation.slots), int(episodes))
        # Episodes side by side share no wall clock: they run in simulated time, where there is one.
        stepped = on_stepped_clock(config)
        self._envs: list[RobotEnv] = []
        with ExitStack() as open_envs:
            for _ in range(count):
                self._envs.append(make_env(stepped))
                open_envs.callback(self._envs[-1].close)
            self._open_envs = open_envs.pop_all()

    def close(self) -> None:
        """Close the environments: a robot has one owner at a time."""
        self._open_envs.close()

    def evaluate(
        self,
        behaviour: Behaviour,
        seed_set: SeedSet,
        environment_steps: int,
        stop: threading.Event | None = None,
    ) -> EvaluationResult:
        """Run the behaviour's best guess on a set of seeds.

        Args:
            behaviour: The policy; its exploration is not used.
            seed_set: Which episodes.
            environment_steps: Training steps behind the policy, for the record.
            stop: When set, the evaluation is given up.

        Raises:
            Stopped: `stop` was set.
            PolicyError: The policy was made for another task, rate or observation.
        """
        settings = self._config.evaluation
        final = seed_set == "final"
        first = int(settings.final_seed if final else settings.seed)
        count = int(settings.final_episodes if final else settings.episodes)
        check_fit(behaviour, self._envs[0])
        envs = self._envs[:count]
        acting = behaviour.exploring("mean").to(compute_device(self._config))
        runner = PolicyRunner(acting, slots=len(envs))
        started = time.monotonic()
        given_up = threading.Event() if stop is None else stop
        seeds = Seeds(range(first, first + count))
        results = []
        for result in rollout(envs, runner, seeds, stop=given_up.is_set):
            if result.interrupted is None:
                results.append(result)
            else:  # it says nothing of the policy
                seeds.again(result.seed)
        if given_up.is_set():
            raise Stopped
        results.sort(key=lambda result: result.seed)
        return EvaluationResult.of_episodes(
            np.array([result.success for result in results]),
            np.array([result.seconds for result in results]),
            # A chunk policy that acts by itself is the cloned one.
            policy="bc" if behaviour.policy.base is behaviour.policy else "rl",
            seed_set=seed_set,
            environment_steps=environment_steps,
            gradient_updates=behaviour.version,
            wall_seconds=time.monotonic() - started,
        )


def check_fit(behaviour: Behaviour, env: RobotEnv | RobotEnvWrapper) -> None:
    """Check that a policy was made for an environment.

    Raises:
        PolicyError: Names the field that differs, with got and expected.
    """
    schema = env.schema
    widths = {f.name: int(np.prod(f.shape)) for f in schema.fields}
    behaviour.expect(
        task=schema.task,
        control_rate_hz=schema.control_rate_hz,
        action_names=schema.action_names,
        observation={name: widths[name] for name in schema.observation_names},
    )
