"""Hindsight: relabel an episode as if a state it reached had been its goal.

HER (Andrychowicz et al. 2017, arXiv 1707.01495), with goals from later in the same episode. For
environments that observe the goal and can compute the reward for any other goal, such as those of
gymnasium-robotics and panda-gym.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from policies.runner import PolicyRunner
from robot_rl.data.schema import SOURCE_DEMONSTRATION, SOURCE_POLICY
from robot_rl.env.factory import make_env
from robot_rl.env.gym import ACHIEVED, DESIRED, GymError, GymRobot
from robot_rl.learning.algorithms.base import Algorithm, Batch
from robot_rl.learning.workbench import Rows, Workbench
from robot_rl.replay.row_sources import EpisodeRows
from robot_rl.replay.sampler import Sampler
from robot_rl.replay.windows import SampleSpec, is_observation

_GOALS = 4  # per episode: k in the paper
_MOST_VALUES = 4  # a sparse reward has few values
_AGREEING = 0.99  # minimum fraction of rows that agree with the environment's function
_SOURCES = SOURCE_DEMONSTRATION, SOURCE_POLICY  # sources of rows that are exchanged
_MOST_ROWS = 500_000  # latest rows held in memory

Columns = Mapping[str, npt.NDArray[Any]]
Goals = npt.NDArray[Any]
GoalReward = Callable[[Goals, Goals], npt.NDArray[np.float64]]


class Judged(NamedTuple):
    """Reward and termination of a step, given the value of the environment's own function."""

    reward: float
    terminated: bool


# Looks them up by that value. None if it was never seen.
Judgement = Callable[[float], Judged | None]


@dataclass(eq=False)
class Hindsight:
    """Replaces a fraction of each batch with transitions relabelled to reached goals."""

    recorded: Rows  # rows of the run
    spec: SampleSpec  # batch spec of the algorithm
    share: float  # fraction of each batch, in [0, 1]
    goal_reward: GoalReward  # the environment's function
    judged: Judgement  # reward and termination by the function's value; see `judgements`
    seed: int  # seed of all draws
    base: PolicyRunner | None = None  # makes proposals, if the algorithm uses its base's actions

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng((self.seed, _GOALS))
        self._kept: dict[int, Columns] = {}
        self._read = Counter[int]()
        self._last = dict.fromkeys(_SOURCES, -1)  # last episodes read

    @classmethod
    def of(cls, bench: Workbench, algorithm: Algorithm, recorded: Rows) -> Self | None:
        """Create it if the environment has goals with a sparse reward. None otherwise."""
        spec, share = algorithm.required, algorithm.schedule.hindsight_share
        cloned, names = bench.cloned, set(spec.fields)
        base = PolicyRunner(cloned) if "base_action" in names else None
        seen = set() if base is None else set(cloned.policy.observation)
        if not share or not {ACHIEVED, DESIRED, *seen} <= names or cloned.uses_instruction:
            return None
        if spec.returns:  # returns towards another goal are not computed
            return None
        with closing(make_env(bench.settings.environment)) as env:
            if not (isinstance(env.robot, GymRobot) and env.robot.has_goals):
                return None
            goal_reward = goal_reward_of(env.robot)
        shown = bench.settings.demonstrated
        known = recorded.episodes(columns(spec), demonstrations=shown)
        judged = judgements((episode for _, episode in known), goal_reward)
        if judged is None:
            return None
        bench.say("learner: also learns in hindsight, as if the reached place had been the goal")
        return cls(recorded, spec, share, goal_reward, judged, bench.settings.seed, base)

    @property
    def facts(self) -> dict[str, float]:
        """See `BatchMap`."""
        return {"hindsight_share": self.share}

    def count(self) -> None:
        """Process the episodes that are now visible in the rows."""
        for kind in _SOURCES:
            found = [self._kept[kind]] if kind in self._kept else []
            shown = kind == SOURCE_DEMONSTRATION
            episodes = self.recorded.episodes(
                columns(self.spec), self._last[kind], demonstrations=shown
            )
            for self._last[kind], episode in episodes:
                self._read[kind] += 1
                rng = np.random.default_rng((self.seed, kind, self._read[kind]))
                goals = rng.integers(len(episode["reward"]) - 1, size=_GOALS).tolist()
                found += [towards for g in goals if (towards := self._towards(episode, g))]
            if found:
                joined = {name: np.concatenate([part[name] for part in found]) for name in found[0]}
                self._kept[kind] = {name: column[-_MOST_ROWS:] for name, column in joined.items()}

    def mixed(self, batch: Batch) -> Batch:
        """Return a copy of the batch with a fraction replaced. Operator rows are never replaced."""
        given = {name: column.copy() for name, column in batch.items()}
        exchanged = self._rng.random(len(batch["reward"])) < self.share
        for kind, kept in self._kept.items():
            rows = np.flatnonzero(exchanged & (batch["source"] == kind))
            drawn = self._rng.integers(len(kept["reward"]), size=len(rows))
            for name, column in kept.items():
                given[name][rows] = column[drawn]
        return given

    def _towards(self, episode: Columns, step: int) -> Columns | None:
        """Relabel an episode's transitions as if the state reached after a step had been its goal.

        None if that goal was already reached at the start.
        """
        achieved = episode[ACHIEVED]
        goals = np.repeat(achieved[step + 1][None], len(achieved), 0)
        values = self.goal_reward(achieved, goals)
        judged = [self.judged(float(value)) for value in values[1:]]
        if values[0] == values[step + 1] or None in judged:
            return None
        reward = np.array([each.reward for each in judged if each], np.float32)
        ends = np.array([each.terminated for each in judged if each])
        length = int(ends.argmax()) + 1 if ends.any() else len(ends)
        seen = filter(is_observation, self.spec.fields)
        rows = {name: episode[name][: length + 1] for name in seen}
        rows[DESIRED] = goals[: length + 1]
        if self.base is not None:
            rows["base_action"] = self.base.label(rows, step)
        of_steps = {"action": episode["action"], "reward": reward, "terminated": ends}
        for name, column in of_steps.items():  # the last row has no step
            rows[name] = np.concatenate([column[:length], np.zeros_like(column[:1])])
        spec = replace(self.spec, demonstration_share=1.0)
        sampler = Sampler(EpisodeRows(rows, [len(rows["reward"])]), spec, self._rng)
        windows = sampler.every_window()
        return {name: windows[name] for name in windows if name != "source"}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the random stream, as JSON. Episodes are re-read from the store."""
        return dict(self._rng.bit_generator.state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`. The same rows must be visible as when it was made."""
        self.count()
        self._rng.bit_generator.state = dict(state)


def goal_reward_of(robot: GymRobot) -> GoalReward:
    """Return the environment's reward function: rewards (n,) of achieved and goals, both (n, g)."""
    function = robot.env.get_wrapper_attr("compute_reward")

    def rewards(achieved: Goals, desired: Goals) -> npt.NDArray[np.float64]:
        try:
            pairs = zip(achieved, desired, strict=True)
            return np.array([float(function(a, d, {})) for a, d in pairs])
        except Exception as error:  # the environment's code may raise anything
            raise GymError(
                f"compute_reward of {robot.id} does not give a reward for other goals",
                got=repr(error),
                hint="correct it, or do without: algorithm.schedule.hindsight_share=0",
            ) from error

    return rewards


def judgements(episodes: Iterable[Columns], goal_reward: GoalReward) -> Judgement | None:
    """Learn from episodes which reward and termination belong to each value of the function.

    A wrapper may have changed both, so the environment's function is not enough. None if reward and
    termination do not depend on the value, or if it has too many values. If every reward equals its
    value and no step has terminated, the rule also covers unseen values.
    """
    seen: dict[float, Counter[Judged]] = {}
    for episode in episodes:
        values = goal_reward(episode[ACHIEVED][1:], episode[DESIRED][:-1])
        steps = zip(values, episode["reward"][:-1], episode["terminated"][:-1], strict=True)
        for value, reward, terminated in steps:
            judged = Judged(float(reward), bool(terminated))
            seen.setdefault(float(value), Counter())[judged] += 1
    usual = {value: counts.most_common(1)[0] for value, counts in seen.items()}
    agreeing = sum(count for _, count in usual.values())
    total = sum(counts.total() for counts in seen.values())
    if not 1 <= len(seen) <= _MOST_VALUES or agreeing < _AGREEING * total:
        return None
    known = {value: judged for value, (judged, _) in usual.items()}
    if all(judged == (value, False) for value, judged in known.items()):
        return lambda value: Judged(value, terminated=False)
    return known.get if len(known) > 1 else None


def columns(spec: SampleSpec) -> list[str]:
    """Return the fields of whole episodes that hindsight needs for an algorithm's batches."""
    return [*(name for name in spec.fields if name not in ("base_action", "action")), "action"]
