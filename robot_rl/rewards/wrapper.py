"""The one wrapper that decides rewards in the actor: it asks the source, and listens to people.

What people say of an episode that is stored already becomes an annotation of its rows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from policies import registry
from robot_rl.data.schema import Observation, RowSchema
from robot_rl.env.factory import make_env
from robot_rl.env.operator import NOTHING, OperatorEvent, OperatorInput
from robot_rl.env.robot import Action
from robot_rl.env.robot_env import Begun, Options, RobotEnv, RobotEnvWrapper, Stepped
from robot_rl.env.task import Outcome
from robot_rl.errors import RobotRLError
from robot_rl.replay import AnnotationRefused, StoreFull
from robot_rl.replay.address import ReplayAddress
from robot_rl.replay.protocol import Annotations, Opened
from robot_rl.replay.windows import LABELS
from robot_rl.rewards.source import HUMAN_VERSION, TASK_VERSION, RewardError, RewardSource
from robot_rl.wire import ServerUnreachable

Config = Mapping[str, Any]

_PATIENCE_SECONDS = 30.0
_RETRY_SECONDS = 0.2
_PASSING = (AnnotationRefused, ServerUnreachable, StoreFull)  # rows may still be on their way


class RewardWrapper(RobotEnvWrapper):
    """Sets reward, terminated, success and ``info["reward_version"]`` of each step.

    Beside the source a person may label, where an `Intervention` wrapper within listens to one:
    success or failure during an episode ends it at the next tick, with a reward of 1 or 0. What is
    said between two episodes is about the one before, whose rows are stored already: it goes to
    `on_late_label`. ``info["task_success"]`` keeps what the task's own detector said, which where
    there is a source of another kind is for records only.

    Args:
        env: The environment; it must be able to go on after its task's own success.
        source: Who judges.
        hidden: Observation names that are there for the source alone: neither the policy nor the
            rows see them.

    Raises:
        RewardError: At a reset: the observation lacks what the source reads.
    """

    def __init__(
        self, env: RobotEnv | RobotEnvWrapper, source: RewardSource, *, hidden: Iterable[str] = ()
    ) -> None:
        super().__init__(env)
        self._source, self._hidden = source, frozenset(hidden)
        self.on_late_label: Callable[[bool], None] = lambda success: None
        self._step = 0
        self._task_success = self._detected = False
        self._said: bool | None = None
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
        """What to record of the episode beside its rewards: who called it a success."""
        facts: dict[str, object] = {"operator_success": self._said}
        if self._source.version != HUMAN_VERSION:
            facts["detector_success"] = self._detected
        if self._source.version == TASK_VERSION:
            return facts
        return {**facts, "task_success": self._task_success, "reward_alarm": self._source.alarm}

    def reset(self, *, seed: int | None = None, options: Options = None) -> Begun:
        """Begin an episode; a label that came since the last step is about the one before."""
        observation, info = super().reset(seed=seed, options=options)
        late = _label(info)
        if late is not None and self._step > 0:
            self.on_late_label(late)
        missing = [name for name in self._source.observed if name not in observation]
        if missing:
            raise RewardError(
                f"the reward needs the observation {missing[0]!r}",
                got=sorted(observation),
                expected=sorted(self._source.observed),
                hint="name the cameras of the reward with reward.cameras",
            )
        self._source.reset(observation)
        self._step, self._task_success, self._detected, self._said = 0, False, False, None
        return self._visible(observation), info

    def step(self, action: Action) -> Stepped:
        """Step, then judge; a time limit counts whatever the task's own detector says."""
        observation, reward, terminated, truncated, info = super().step(action)
        self._step += 1
        task = Outcome(float(reward), terminated, truncated, bool(info["success"]))
        self._task_success = self._task_success or task.success
        outcome, version = self._source.judge(observation, task), self._source.version
        label = self._said = _label(info)
        self._detected = outcome.success
        if label is not None:
            outcome, version = Outcome(float(label), True, False, label), HUMAN_VERSION
        info |= {"success": outcome.success, "task_success": task.success}
        info["reward_version"] = version
        over = truncated or self._step >= self.task.time_limit_steps
        ends = over and not outcome.terminated
        return self._visible(observation), outcome.reward, outcome.terminated, ends, info

    def _visible(self, observation: dict[str, Any]) -> dict[str, Any]:
        return {name: v for name, v in observation.items() if name not in self._hidden}


def _label(info: Mapping[str, Any]) -> bool | None:
    """What the operator said last of success or failure, None if nothing."""
    said: OperatorInput = info.get("operator", NOTHING)
    labels = [e for e in said.events if e in (OperatorEvent.SUCCESS, OperatorEvent.FAILURE)]
    return labels[-1] is OperatorEvent.SUCCESS if labels else None


def make_source(config: Config) -> RewardSource:
    """Make the configured source; a `RewardError` tells that its model cannot be read."""
    return registry.make(config["reward"]["source"], RewardSource)


def make_watched_env(
    config: Config, cameras: Iterable[Mapping[str, Any]] | None = None
) -> tuple[RobotEnv, frozenset[str]]:
    """Make the configured environment with cameras for the reward beside those of the policy.

    `cameras`, by default those of the configured source, are as `observation.cameras`; one of a
    name that is there already is not added. The names that are there for the reward alone come
    with the environment.
    """
    own = config["observation"]["cameras"]
    wanted = config["reward"]["cameras"] if cameras is None else cameras
    wanted = () if own is None else wanted  # the robot shows all that it has
    observed = {camera["name"] for camera in own or ()}
    further = [camera for camera in wanted if camera["name"] not in observed]
    forms = ("images/{}", "images/{}_depth", "points/{}")
    names = {form.format(camera["name"]) for camera in further for form in forms}
    return make_env(config, further), frozenset(names)


@dataclass(eq=False)
class LateLabels:
    """Annotates the episode that an actor has sent last, without keeping its loop waiting.

    What somebody says becomes the annotation `reward` of the episode's rows. Learning that asks for
    it (`reward.annotation=reward`) takes the newest: 1 at the last action after a success, which
    then ends the episode as one that is said in time does, else 0.
    """

    place: ReplayAddress  # where the server is; each label has a connection of its own
    session: Opened  # the actor's
    note: Callable[[str], None]  # told of a label that is lost

    def __post_init__(self) -> None:
        self._first = self._last = self.session.next_sequence
        self._threads: list[threading.Thread] = []

    def note_row(self, sequence: int, *, begins: bool) -> None:
        """Remember a row that was sent, and whether an episode begins with it."""
        self._first = sequence if begins else self._first
        self._last = sequence

    def tell(self, success: bool) -> None:
        """Take what somebody says of the last episode; never waits."""
        rows = np.arange(self._first, self._last + 1)
        thread = threading.Thread(
            target=self._store, args=(rows, success), name="late-label", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Wait until all labels are stored or given up."""
        for thread in self._threads:
            thread.join()

    def _store(self, rows: npt.NDArray[np.int64], success: bool) -> None:
        rewards = np.zeros(len(rows), np.float32)
        rewards[-2:-1] = float(success)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                with self.place.client() as client:
                    # A later label has a larger version, whoever gives it.
                    place, now = self.session.place, time.time_ns()
                    client.annotate(Annotations(place, LABELS, now, rows, rewards))
                return
            except RobotRLError as problem:
                if time.monotonic() > deadline or not isinstance(problem, _PASSING):
                    self.note(f"a label of the last episode is lost: {problem}")
                    return
            time.sleep(_RETRY_SECONDS)
