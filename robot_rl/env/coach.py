"""A coach for the operator: says when the policy is unlikely to succeed without help."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from robot_rl.env.operator import OperatorInbox
from robot_rl.env.robot import Action
from robot_rl.env.robot_env import Begun, EpisodeEnv, Options, RobotEnvWrapper, Stepped

# The policy changes while it learns, so only so many of the last episodes count, helped ones too:
# where all are helped nothing is known of it any more, and it is tried again.
_MEMORY = 40
# Episodes to compare with, and the share of them that failed, from which help is advised.
_LEAST, _FAILS = 6, 0.7


class Coach(RobotEnvWrapper):
    """Compares the running episode with the last ones; it has no influence on the robot.

    It says "help now" where most of the episodes failed in which the policy had acted for as long
    as it has now: since the episode began, or since the operator handed back. Only those count that
    nobody helped or cut short. What it says is the `advice` of the inbox and of a step's info,
    empty where it says nothing; `note` is told that each time that it begins to.

    The environment must have the wrapper that judges success. `episodes` are records of those
    before, with ``success`` and `episode_facts`.
    """

    def __init__(
        self,
        env: EpisodeEnv,
        inbox: OperatorInbox,
        episodes: Iterable[Mapping[str, Any]] = (),
        note: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(env)
        self._inbox, self._note = inbox, note
        past = ((int(e.get("alone_steps", 0)), bool(e["success"])) for e in episodes)
        self._past = deque(past, maxlen=_MEMORY)  # steps alone, success
        self._begin()

    def _begin(self) -> None:
        self._steps = self._since = self._advices = self._alone_steps = 0
        self._helped = self._success = False
        self._inbox.advice = ""

    @property
    def episode_facts(self) -> dict[str, object]:
        """What is to be recorded of an episode.

        ``advices``: how often the coach began to say something. ``alone_steps``: the length of an
        episode that nobody helped or cut short; 0 of any other.
        """
        return {"advices": self._advices, "alone_steps": self._alone_steps}

    def reset(self, *, seed: int | None = None, options: Options = None) -> Begun:
        """Begin an episode, without advice."""
        if self._steps:
            self._past.append((self._alone_steps, self._success))
        self._begin()
        return super().reset(seed=seed, options=options)

    def step(self, action: Action) -> Stepped:
        """Step, and say what the operator had better do next."""
        observation, reward, terminated, truncated, info = super().step(action)
        self._steps += 1
        self._since = 0 if info["intervened"] else self._since + 1
        self._helped = self._helped or bool(info["intervened"])
        over = terminated or self._steps >= self.task.time_limit_steps
        self._success = bool(info["success"])
        self._alone_steps = self._steps if over and not self._helped else 0
        before, self._inbox.advice = self._inbox.advice, "" if over else self._advice()
        if self._inbox.advice and not before:
            self._advices += 1
            if self._note is not None:
                self._note(self._inbox.advice)
        info["advice"] = self._inbox.advice
        return observation, float(reward), terminated, truncated, info

    def _advice(self) -> str:
        like = [success for steps, success in self._past if steps > self._since]
        failed = like.count(False)
        if not self._since or len(like) < _LEAST or failed < _FAILS * len(like):
            return ""
        return f"help now: {failed} of {len(like)} episodes that ran so long failed"
