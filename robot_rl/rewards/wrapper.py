"""The one wrapper that decides rewards in the actor: it asks the source, and listens to people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from gymnasium import spaces

from robot_rl.data.schema import Observation, RowSchema
from robot_rl.env.operator import NOTHING, OperatorEvent, OperatorInput
from robot_rl.env.robot import Action
from robot_rl.env.robot_env import RobotEnv, RobotEnvWrapper
from robot_rl.env.task import Outcome
from robot_rl.rewards.source import HUMAN_VERSION, TASK_VERSION, RewardSource, check_observed


class RewardWrapper(RobotEnvWrapper):
    """Sets reward, terminated, success and ``info["reward_version"]`` of each step.

    Beside the source a person may label, where an `Intervention` wrapper within listens to one:
    success or failure during an episode ends it at the next tick, with a reward of 1 or 0. What is
    said between two episodes is about the one before, whose rows are stored already: it goes to a
    listener. ``info["task_success"]`` keeps what the task's own detector said, which where there is
    a source of another kind is for records only.

    Attributes:
        on_late_label: Told of labels that come after the end of an episode, success or not.

    Args:
        env: The environment; it must be able to go on after its task's own success.
        source: Who judges.
        hidden: Observation names that are there for the source alone: neither the policy nor the
            rows see them.

    Raises:
        RewardError: At a reset: the observation lacks what the source reads.
    """

    def __init__(
        self,
        env: RobotEnv | RobotEnvWrapper,
        source: RewardSource,
        *,
        hidden: Iterable[str] = (),
    ) -> None:
        """See the class."""
        super().__init__(env)
        self._source = source
        self._hidden = frozenset(hidden)
        self.on_late_label: Callable[[bool], None] = lambda success: None
        self._step = 0
        self._task_success = False
        if self._hidden:
            shown: Any = self._visible(dict(cast("spaces.Dict", env.observation_space).items()))
            self.observation_space = cast("spaces.Space[Observation]", spaces.Dict(shown))

    @property
    def schema(self) -> RowSchema:
        """Columns of the rows, without what only the source sees."""
        inner = super().schema
        return replace(inner, fields=tuple(f for f in inner.fields if f.name not in self._hidden))

    @property
    def episode_facts(self) -> dict[str, object]:
        """What to record of the episode beside its rewards; empty for the task's own."""
        if self._source.version == TASK_VERSION:
            return {}
        return {"task_success": self._task_success, "reward_alarm": self._source.alarm}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; a label that came since the last step is about the one before."""
        observation, info = super().reset(seed=seed, options=options)
        late = _label(info)
        if late is not None and self._step > 0:
            self.on_late_label(late)
        check_observed(self._source, observation)
        self._source.reset(observation)
        self._step, self._task_success = 0, False
        return self._visible(observation), info

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Step, then judge; a time limit counts whatever the task's own detector says."""
        observation, reward, terminated, truncated, info = super().step(action)
        self._step += 1
        task = Outcome(float(reward), terminated, truncated, bool(info["success"]))
        self._task_success = self._task_success or task.success
        outcome, version = self._source.judge(observation, task), self._source.version
        label = _label(info)
        if label is not None:
            outcome, version = Outcome(float(label), True, False, label), HUMAN_VERSION
        info |= {
            "success": outcome.success,
            "task_success": task.success,
            "reward_version": version,
        }
        over = truncated or self._step >= self.task.time_limit_steps
        ends = over and not outcome.terminated
        return self._visible(observation), outcome.reward, outcome.terminated, ends, info

    def _visible(self, observation: dict[str, Any]) -> dict[str, Any]:
        if not self._hidden:
            return observation
        return {name: v for name, v in observation.items() if name not in self._hidden}


def _label(info: Mapping[str, Any]) -> bool | None:
    """What the operator said last of success or failure, None if nothing."""
    said: OperatorInput = info.get("operator", NOTHING)
    labels = [e for e in said.events if e in (OperatorEvent.SUCCESS, OperatorEvent.FAILURE)]
    return labels[-1] is OperatorEvent.SUCCESS if labels else None
