"""What the control loop last knew, on its way to the console."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

import numpy as np

from robot_rl.data.schema import DTYPES, Observation
from robot_rl.wire import WireError
from robot_rl.wire.messages import (
    MAXIMUM_PAYLOAD_FRAMES,
    Frame,
    Message,
    Natural,
    Payload,
    encode,
)


class Activity(StrEnum):
    """What the loop is doing; members equal their text."""

    ACTING = "acting"  # an episode runs
    RESETTING = "resetting"  # the robot is being brought to the next start
    WAITING = "waiting"  # no episode runs, and the next is about to begin or to be asked for
    PAUSED = "paused"  # the operator wants no further episode for now
    STOPPED = "stopped"  # the robot holds still until the stop is cleared
    ENDED = "ended"  # the process is about to end


class InControl(StrEnum):
    """Who moves the robot; members equal their text."""

    POLICY = "policy"
    OPERATOR = "operator"
    NOBODY = "nobody"


@dataclass(frozen=True)
class Situation:
    """The facts of a moment, beside what was observed.

    Attributes:
        activity: What the loop is doing.
        in_control: Who moves the robot.
        reason: Why the robot holds still, where it does; empty otherwise.
        episode: Number of the episode of this process, from 1; 0 before the first.
        episode_step: Actions taken in it.
        time_limit_steps: Actions after which it is cut.
        reward: Of the last action.
        total_reward: Of the episode so far.
        success: Whether the goal is reached.
        intervened_steps: Actions of the operator in the episode.
        run_steps: Environment steps of the whole run, as far as known.
        policy_version: Gradient updates behind the acting policy.
        decision_seconds: From the tick to the sending of the last action [s].
        lateness_seconds: How late the last tick was reached [s].
        instruction: What the robot is told to do.
        action_names: Columns of the actions.
        action: What was sent last, (d,) in [-1, 1].
        policy_action: What the policy wanted, (d,) in [-1, 1].
        stamp_observation: Time of the observation on the clock of the environment [ns].
    """

    activity: Activity = Activity.WAITING
    in_control: InControl = InControl.NOBODY
    reason: str = ""
    episode: int = 0
    episode_step: int = 0
    time_limit_steps: int = 0
    reward: float = 0.0
    total_reward: float = 0.0
    success: bool = False
    intervened_steps: int = 0
    run_steps: int = 0
    policy_version: int = 0
    decision_seconds: float = 0.0
    lateness_seconds: float = 0.0
    instruction: str = ""
    action_names: tuple[str, ...] = ()
    action: tuple[float, ...] = ()
    policy_action: tuple[float, ...] = ()
    stamp_observation: int = 0


@dataclass(frozen=True)
class Snapshot:
    """One moment of a control loop.

    Attributes:
        situation: The facts.
        observation: What was seen, by field name; its arrays are not written to any more.
    """

    situation: Situation = field(default_factory=Situation)
    observation: Observation = field(default_factory=dict)

    def to_frames(self) -> list[Frame]:
        """Make the frames of a message; large arrays are not copied."""
        values = self.observation
        arrays = [(name, value.dtype.name, value.shape) for name, value in values.items()]
        whole = (np.ascontiguousarray(value) for value in values.values())
        payload = [value.reshape(-1).view(np.uint8).data for value in whole]
        return encode(Seen(situation=self.situation, arrays=arrays), payload)

    @classmethod
    def of(cls, seen: Seen, payload: Payload) -> Snapshot:
        """Take a message of `to_frames` apart.

        Raises:
            WireError: The payload is not as it is announced.
        """
        found = [len(frame) for frame in payload]
        sizes = [
            math.prod(shape) * np.dtype(dtype).itemsize if dtype in DTYPES else -1
            for _, dtype, shape in seen.arrays
        ]
        if found != sizes:
            raise WireError(
                "the arrays of a snapshot are not as they are announced",
                got=f"{found} bytes",
                expected=str(seen.arrays)[:200],
            )
        observation = {
            name: np.frombuffer(frame, dtype).reshape(shape)
            for (name, dtype, shape), frame in zip(seen.arrays, payload, strict=True)
        }
        return cls(seen.situation, observation)


class Seen(Message):
    """A snapshot: the facts, and for each frame the name, dtype and shape of an array."""

    payload_frames: ClassVar[tuple[int, int]] = (0, MAXIMUM_PAYLOAD_FRAMES)
    situation: Situation
    arrays: list[tuple[str, str, tuple[Natural, ...]]]
