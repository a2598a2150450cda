"""Faults of a robot on topics. The class is the fault's kind in faults.jsonl and docs/topics.md."""

from __future__ import annotations

from robot_rl.env.robot import PersonNeeded, RobotInterrupted
from robot_rl.errors import RobotRLError


class SensorLate(RobotInterrupted):
    """The newest message on a topic is too old, or there is none.

    `age_s` [s] is since its receipt, by the steady clock; infinite without one. `why` is what is
    known of the reason, `without` the setting that does without this topic; empty for none.
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
    """The newest message came in time, but was not measured just now.

    `age_s` is that by its stamp and the system clock here; negative if the stamp is ahead of that.
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
    """A topic is not silent, but has not yet given enough measurements to begin with."""


class SensorsApart(RobotInterrupted):
    """The measurements of one observation were not taken at about the same time."""


class BadMeasurement(RobotInterrupted):
    """A message whose content cannot be used: wrong encoding, a missing joint, not finite."""


class CommandConflict(RobotInterrupted):
    """Somebody else publishes on the topic of this robot's commands."""

    needs_start = True


class MeasuredTwice(RobotInterrupted):
    """Two nodes publish what is measured, so that it is not known which is right."""

    needs_start = True


class ServiceFailed(RobotInterrupted):
    """A service that does not answer, or says no."""


class ArmStopped(RobotInterrupted):
    """The arm is stopped, or was stopped while it moved; a person clears it."""


class ResetFailed(PersonNeeded):
    """The arm does not come to where an episode starts."""


class GoalReachedBefore(PersonNeeded):
    """The goal of the task is reached before its episode begins."""


class RosUnavailable(RobotRLError):
    """ROS 2 cannot be used in this process."""
