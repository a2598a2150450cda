"""What the control loop last knew, on its way to the console.

A message is a JSON header and then the observation's arrays as raw bytes, each in its own frame.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

import numpy as np

from robot_rl.data.schema import DTYPES, Observation
from robot_rl.errors import RobotRLError

_MOST_ARRAYS = 256


class BadSnapshot(RobotRLError):
    """A message that is no snapshot."""


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

    def to_frames(self) -> list[bytes | memoryview]:
        """Serialise; large arrays are not copied."""
        values = self.observation
        layout = [[name, value.dtype.name, list(value.shape)] for name, value in values.items()]
        header = {"situation": asdict(self.situation), "arrays": layout}
        bytes_of = (
            np.ascontiguousarray(value).reshape(-1).view(np.uint8) for value in values.values()
        )
        return [json.dumps(header).encode(), *(data.data for data in bytes_of)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> Snapshot:
        """Read what `to_frames` wrote.

        Raises:
            BadSnapshot: It is something else.
        """
        try:
            header = json.loads(frames[0])
            layout = header["arrays"]
            if len(layout) != len(frames) - 1 or len(layout) > _MOST_ARRAYS:
                raise ValueError(f"{len(layout)} arrays announced, {len(frames) - 1} received")
            observation = {
                str(name): _array(dtype, shape, frame)
                for (name, dtype, shape), frame in zip(layout, frames[1:], strict=True)
            }
            return cls(_situation(header["situation"]), observation)
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise BadSnapshot(
                "a message of the actor is no snapshot",
                got=repr(error),
                hint="actor and console must be of the same version of robot_rl",
            ) from error


def _array(dtype: object, shape: Sequence[int], data: bytes) -> Any:
    if dtype not in DTYPES:
        raise ValueError(f"an array cannot have the dtype {str(dtype)[:40]}")
    sizes = tuple(int(size) for size in shape)
    expected = math.prod(sizes) * np.dtype(str(dtype)).itemsize
    if len(data) != expected:
        raise ValueError(f"an array of {len(data)} bytes, not {expected}")
    return np.frombuffer(data, str(dtype)).reshape(sizes)


def _situation(content: dict[str, Any]) -> Situation:
    known = {f.name: content[f.name] for f in fields(Situation)}
    known["activity"] = Activity(known["activity"])
    known["in_control"] = InControl(known["in_control"])
    known["action_names"] = tuple(map(str, known["action_names"]))
    known["action"] = tuple(map(float, known["action"]))
    known["policy_action"] = tuple(map(float, known["policy_action"]))
    return Situation(**known)
