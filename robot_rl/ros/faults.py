"""Faults of a robot on topics. Class names are the kinds in faults.jsonl and docs/topics.md."""

from __future__ import annotations

from robot_rl.env.robot import PersonNeeded, RobotInterrupted
from robot_rl.errors import RobotRLError


class SensorLate(RobotInterrupted):
    """A topic's latest message is too old, or none has arrived.

    `age_s` is the time since receipt on the steady clock [s]; pass infinity if there is no message.
    `why` is the known reason; `without` is the setting that makes the topic optional. Either may be
    empty.
    """

    def __init__(
        self, topic: str, age_s: float, limit_s: float, why: str = "", without: str = ""
    ) -> None:
        none = age_s == float("inf")
        self.age_s = 0.0 if none else age_s
        other = f"; or {without}" if none and without else ""
        got = [] if none else [f"{1e3 * age_s:.1f} ms"]
        super().__init__(
            f"no message on {topic}" if none else f"the newest message on {topic} is too old",
            got=", ".join([*got, *([why] if why else [])]) or None,
            expected=f"at most {1e3 * limit_s:.0f} ms",
            hint=f"is its node running, its device connected, and this machine not too busy? See"
            f" /diagnostics{other}",
        )


class MeasuredLate(SensorLate):
    """The latest message arrived in time, but its measurement is not current.

    `age_s` [s] is its age by its stamp and the local system clock; negative if the stamp is ahead.
    """

    def __init__(
        self, topic: str, age_s: float, limit_s: float, why: str = "", setting: str = ""
    ) -> None:
        side = "ahead of" if age_s < 0 else "ago by"
        got = f"{abs(age_s):.3f} s {side} this machine's clock"
        RobotInterrupted.__init__(
            self,
            f"what comes on {topic} was not measured just now",
            got=f"{got}, {why}" if why else got,
            expected=f"at most {1e3 * limit_s:.0f} ms",
            hint="its node may have ended, or this machine be too busy: end other programs. The"
            " clocks of two machines may differ: synchronise them (chrony, PTP)"
            + (f". If its data take so long, raise {setting}" if setting else ""),
        )


class SensorSlow(RobotInterrupted):
    """A topic is not silent, but has not yet delivered enough measurements to start."""


class SensorsApart(RobotInterrupted):
    """The measurements of one observation are too far apart in time."""


class BadMeasurement(RobotInterrupted):
    """A message's content is unusable: wrong encoding, a missing joint, or a non-finite value."""


class CommandConflict(RobotInterrupted):
    """Another node publishes on this robot's command topic."""

    needs_start = True


class MeasuredTwice(RobotInterrupted):
    """Two nodes publish the same measurement, so it is unclear which one is right."""

    needs_start = True


class ServiceFailed(RobotInterrupted):
    """A service did not answer, or refused."""


class ArmStopped(RobotInterrupted):
    """The arm is stopped, or was stopped while moving; a person must clear it."""


class ResetFailed(PersonNeeded):
    """The arm does not reach the episode's start."""


class GoalReachedBefore(PersonNeeded):
    """The task's goal is already reached before the episode starts."""


class RosUnavailable(RobotRLError):
    """ROS 2 cannot be used in this process."""
