"""What an operator's word does to a session: who acts, what the robot waits for, and its faults."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt

from robot_rl.env.operator import HALTS, Motion, OperatorEvent, OperatorInbox, OperatorInput
from robot_rl.env.robot import (
    ARM_ACTIONS,
    GRIPPER_ACTION,
    Action,
    OperatorServer,
    Robot,
    RobotInterrupted,
    gripper_columns,
    joint_columns,
)
from robot_rl.run import FAULTS, RunDirectory

# Faults that begin so soon after another have its cause: one cut cable ends many things.
_ONE_CAUSE = timedelta(seconds=1.0)
_NOT_YET = "this process has not moved it yet"
_STOPPED, _PAUSED = "the operator has stopped the robot", "the operator has paused the robot"


class Halted(RobotInterrupted):
    """The robot waits for what a person has to say."""


class TakeOver:
    """Who acts in each step: the operator who moves a device or took over, else the policy."""

    def __init__(self, hold_steps: int) -> None:
        self._hold_steps = hold_steps  # without motion, after which the policy acts again
        self.end()

    def end(self) -> None:
        """From now on the policy acts."""
        self._kept, self._moved_steps = False, 0

    def step(self, said: OperatorInput) -> bool:
        """Whether the operator acts in this step, from what they said and did until now."""
        for event in said.events:
            if event is OperatorEvent.TAKE_OVER:
                self._kept = True
            elif event is OperatorEvent.HAND_BACK:
                self.end()
        if said.moving:
            self._moved_steps = self._hold_steps
            return True
        holding = self._moved_steps > 0
        self._moved_steps -= holding
        return self._kept or holding


class Waits:
    """What the operator has to say before the robot moves again, and why.

    Args:
        robot: One that is not simulated waits for `start` at first, and after every stop.
        inbox: Knows why an arm was stopped.
        starting_s: Time from now in which the robot's own nodes may still be starting [s].
    """

    def __init__(self, robot: Robot, inbox: OperatorInbox, starting_s: float = 0.0) -> None:
        self._robot, self._inbox = robot, inbox
        self._starts_until = time.monotonic() + starting_s
        self._why: dict[OperatorEvent, str] = {}
        if not robot.simulated:
            self.add(OperatorEvent.START, _NOT_YET)

    @property
    def events(self) -> frozenset[OperatorEvent]:
        """What it waits for."""
        return frozenset(self._why)

    def add(self, event: OperatorEvent, why: str) -> None:
        """Wait for an event from now on."""
        self._why[event] = why

    def take(self, event: OperatorEvent) -> None:
        """Take in what the operator says."""
        if event is OperatorEvent.STOP:
            why = self._inbox.why_stopped() or _STOPPED
            self._why.setdefault(OperatorEvent.CLEAR_ERRORS, why)
            if not self._robot.simulated:
                self._why.setdefault(OperatorEvent.START, why)
        elif event is OperatorEvent.PAUSE:
            self.add(OperatorEvent.RESUME, _PAUSED)
        elif event is not OperatorEvent.START or (len(self._why) == 1 and not self.missing()):
            ended = self._why.pop(event, None)
            if ended and self._why.get(OperatorEvent.START) == ended:
                self.add(OperatorEvent.START, f"before it was cleared: {ended}")

    def check_free(self, heard: Sequence[OperatorEvent] = ()) -> None:
        """Raise `Halted` where the robot may not move.

        Among the events `heard` a halt counts even if it was taken back since.
        """
        if self._why or any(event in HALTS for event in heard):
            raise self.halted()

    def missing(self) -> str:
        """What the robot itself says of what is not there."""
        return self._robot.missing() if isinstance(self._robot, OperatorServer) else ""

    def halted(self) -> Halted:
        """What the robot waits for and why, in words."""
        if not self._why:
            return Halted(
                "the operator has halted the robot",
                hint="it was taken back: what was interrupted begins anew",
            )
        words = sorted(self._why)  # `start` after all others
        why = "; ".join(dict.fromkeys(self._why.values()))
        ways = "the device or robot-rl console"
        if isinstance(self._robot, OperatorServer):
            ways = f"the device, robot-rl console or robot-rl doctor call=/{words[0]}"
        hint = f"to go on say {', then '.join(words)}, with {ways}"
        if OperatorEvent.START not in self._why:
            return Halted(why, hint=hint)
        missing = self.missing()
        if not missing:
            return Halted("a person has to look at the robot", got=why, hint=hint)
        if time.monotonic() < self._starts_until:
            return Halted("the robot's nodes are starting", hint=f"wait. Then {hint}")
        back = "bring back what is missing (docs/topics.md says what each is). Then"
        return Halted("the robot is not there", got=missing, hint=f"{back} {hint}")


class FaultLog:
    """What kept the robot from going on, until it is written to the run's `faults.jsonl`.

    Each fault has a ``time`` (ISO 8601) at which it began, a ``kind``, the name of the error's
    class, and the ``problem`` in words. One that lasts, or ends every attempt to begin an episode,
    is one. What began within a second of another is ``part_of`` it: its time.
    """

    def __init__(self) -> None:
        self._unwritten: list[dict[str, str]] = []
        self._last = ""
        self._cause: datetime | None = None  # when the fault began that others may be parts of

    def note(self, kind: str, problem: str, age_s: float = 0.0) -> bool:
        """Take in a fault that began so long ago [s]; returns whether it is a new one."""
        sentence = problem.partition("; got: ")[0]  # what follows, such as an age, may change
        if sentence == self._last:
            return False
        self._last = sentence
        began = datetime.now().astimezone() - timedelta(seconds=age_s)
        fault = {"time": _iso(began), "kind": kind, "problem": problem}
        if self._cause is not None and abs(began - self._cause) <= _ONE_CAUSE:
            fault["part_of"] = _iso(self._cause)
        else:
            self._cause = began
        self._unwritten.append(fault)
        return True

    def forget_last(self) -> None:
        """An episode has begun: the same fault is a new one now."""
        self._last = ""

    def write(self, run: RunDirectory) -> int:
        """Write what is new; returns how many there were, parts not counted.

        Raises:
            RunError: The disk is full.
        """
        faults, self._unwritten = self._unwritten, []
        for fault in faults:
            run.append_jsonl(FAULTS, fault)
        return sum("part_of" not in fault for fault in faults)


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")


def unmovable_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Those of the action columns that no motion of a tool moves: of any but one arm's."""
    return tuple(name for name in names if name not in (*ARM_ACTIONS, GRIPPER_ACTION))


def action_of_motion(
    names: Sequence[str], motion: Motion | None, grippers: npt.ArrayLike
) -> Action:
    """The action (d,) of a motion in [-1, 1]; 0 in columns of other names.

    The motion is one of the tool (6,), base frame, or of each joint (n,) where there are columns of
    joints; None for none. Grippers are -1 open to +1 closed: of each gripper's column, or one
    number for all.
    """
    moved = joint_columns(names) or ARM_ACTIONS
    values = {} if motion is None else dict(zip(moved, motion.tolist(), strict=True))
    action = np.array([values.get(name, 0.0) for name in names], np.float32)
    action[gripper_columns(names)] = grippers
    return action
