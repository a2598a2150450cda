"""Operator interventions: take over from the policy, halt the robot, start it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import LAST_COMMAND, Observation
from robot_rl.env.input_device import InputDevice
from robot_rl.env.operator import HALTS, Motion, OperatorEvent, OperatorInbox, OperatorInput
from robot_rl.env.robot import (
    ARM_ACTIONS,
    FAULT,
    GRIPPER_ACTION,
    Action,
    OperatorServer,
    PersonNeeded,
    RobotInterrupted,
    gripper_columns,
    joint_columns,
    work_report_of,
)
from robot_rl.env.robot_env import RobotEnv
from robot_rl.run import FAULTS, RunDirectory

# A fault this soon after another counts as the same cause: one cut cable causes many faults.
_ONE_CAUSE = timedelta(seconds=1.0)
# Events that end an episode with the robot holding still.
_ENDS = (*HALTS, OperatorEvent.RESET, OperatorEvent.DISCARD)
_NOT_YET = "this process has not moved it yet"
_STOPPED, _PAUSED = "the operator has stopped the robot", "the operator has paused the robot"


class _Halted(RobotInterrupted):
    """The robot is waiting for operator input."""


class Operator:
    """The operator of a session: tracks who acts, what the robot waits for, and its faults.

    Args:
        env: The environment.
        inbox: The operator's input; this class is its only reader.
        hand_back_s: Time without motion after which the policy acts again [s].
        devices: Input devices to poll before every step.
        starting_s: How long from now the robot's nodes may still be starting [s].

    Attributes:
        observation: The latest observation.
        ended_by: The operator event that ended the current or last episode, if any.
        faults: Faults that interrupted the robot.
    """

    def __init__(
        self,
        env: RobotEnv,
        inbox: OperatorInbox,
        hand_back_s: float,
        devices: Sequence[InputDevice] = (),
        starting_s: float = 0.0,
    ) -> None:
        self._robot, self._report = env.robot, work_report_of(env.robot)
        self.inbox, self.devices = inbox, tuple(devices)
        self._names = env.schema.action_names
        self._gripper_columns = gripper_columns(self._names)
        self._hold_steps = max(1, math.ceil(hand_back_s / env.clock.period - 1e-9))
        self._starts_until = time.monotonic() + starting_s
        self._waits_for: dict[OperatorEvent, str] = {}  # event -> reason
        if not env.robot.simulated:
            self._waits_for[OperatorEvent.START] = _NOT_YET
        self._unread: list[OperatorEvent] = []
        self.observation: Observation = {}
        self.ended_by: OperatorEvent | None = None
        self.faults = FaultLog()
        self._kept, self._moved_steps = False, 0  # operator keeps control; see `let_go`
        inbox.unmovable = unmovable_columns(self._names)
        inbox.joints = joint_columns(self._names)
        inbox.missing = self._missing

    # -- in a step --------------------------------------------------------------------------------

    def watch(self) -> OperatorInput:
        """Read the operator's input before a step.

        Raises:
            RobotInterrupted: A device has failed; the robot holds.
        """
        self._ask(lambda device: device.watch(self.observation))
        return self._polled()

    def decide(self, action: Action, said: OperatorInput) -> tuple[Action, bool, bool]:
        """Return the action to send, whether the operator drove, and whether they halted it."""
        self.ended_by = next((event for event in said.events if event in _ENDS), None)
        halted = bool(self._waits_for) or self.ended_by is not None
        for event in said.events:
            if event is OperatorEvent.TAKE_OVER:
                self._kept = True
            elif event is OperatorEvent.HAND_BACK:
                self.let_go()
        holding = self._moved_steps > 0
        self._moved_steps = self._hold_steps if said.moving else self._moved_steps - holding
        drives = said.moving or self._kept or holding
        intervened = drives and not halted  # a halt is no demonstration
        if halted:
            self._robot.hold()
            said = said._replace(motion=np.zeros_like(said.motion), gripper=None)
        if intervened or halted:
            kept = self.observation[LAST_COMMAND][self._gripper_columns]
            grippers = kept if said.gripper is None else said.gripper
            action = action_of_motion(self._names, said.motion, grippers)
        return action, intervened, halted

    def show(self, observation: Observation) -> None:
        """Pass the latest observation, and the last command of a single gripper, to devices."""
        self.observation = observation
        if len(self._gripper_columns) == 1:  # for toggle buttons
            self.inbox.gripper = float(observation[LAST_COMMAND][self._gripper_columns[0]])

    @contextmanager
    def faults_noted(self) -> Iterator[None]:
        """Log faults. A real robot then waits for `start`; a simulated one after some faults."""
        try:
            yield
        except _Halted:
            raise
        except PersonNeeded as problem:
            self._note_fault(type(problem).__name__, str(problem))
            self.wait_for_start(str(problem))
            raise self._halted() from problem
        except RobotInterrupted as fault:
            self._note_fault(type(fault).__name__, str(fault), fault.age_s)
            if fault.needs_start or not self._robot.simulated:
                self.wait_for_start(str(fault))
            raise

    # -- between episodes -------------------------------------------------------------------------

    def begin(self, seed: int, observation: Observation) -> OperatorInput:
        """Start an episode with the policy acting; return the input since the last episode.

        Raises:
            RobotInterrupted: The operator has halted the robot meanwhile, or a device has failed.
        """
        self.observation = observation
        self.faults.forget_last()
        self._ask(lambda device: device.begin(seed))
        # A device may still buffer presses made during the reset; they don't concern this episode.
        said = self.overhear()
        self.check_free(said.events)
        events, self._unread = tuple(self._unread), []
        self.let_go()
        self.show(observation)
        self.ended_by = None
        return said._replace(events=events)

    def let_go(self) -> None:
        """Hand control to the policy."""
        self._kept, self._moved_steps = False, 0

    def hear(self) -> OperatorInput:
        """Return the operator's input since the last call."""
        self._ask(lambda device: device.listen(self.observation))
        return self._polled()

    def overhear(self) -> OperatorInput:
        """Do the same as `hear`; `begin` returns these events again."""
        said = self.hear()
        self._unread += said.events
        return said

    def attend(self) -> None:
        """Read operator input and `check_free` while the robot moves on its own."""
        self.check_free(self.overhear().events)

    def check_free(self, heard: Sequence[OperatorEvent] = ()) -> None:
        """Raise `RobotInterrupted` if the robot may not move.

        A halt among the events `heard` counts even if it has been cleared since.
        """
        if self._waits_for or any(event in HALTS for event in heard):
            raise self._halted()

    @property
    def waits_for(self) -> frozenset[OperatorEvent]:
        """The events required before the robot moves again."""
        return frozenset(self._waits_for)

    def waiting(self) -> str:
        """Why the robot waits and how to continue, as text; empty if it may move."""
        return str(self._halted()) if self._waits_for else ""

    def wait_for_start(self, why: str) -> None:
        """Block motion until the operator sends `start`."""
        self._unread += self._polled().events  # an earlier `start` doesn't count
        self._waits_for[OperatorEvent.START] = why

    # ---------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[InputDevice], None]) -> None:
        try:
            with self.faults_noted():
                for device in self.devices:
                    question(device)
        except RobotInterrupted:
            self._robot.hold()
            raise

    def _polled(self) -> OperatorInput:
        """Read the inbox and update what the robot waits for."""
        said = self.inbox.poll()
        for event in said.events:
            self._tell(f"operator: {event}")
            if event is OperatorEvent.STOP:
                why = self.inbox.why_stopped()
                if why:
                    self._note_fault("ArmStopped", why, self.inbox.stopped_for())
                why = why or _STOPPED
                self._waits_for.setdefault(OperatorEvent.CLEAR_ERRORS, why)
                if not self._robot.simulated:
                    self._waits_for.setdefault(OperatorEvent.START, why)
            elif event is OperatorEvent.PAUSE:
                self._waits_for[OperatorEvent.RESUME] = _PAUSED
            elif event is not OperatorEvent.START or (
                len(self._waits_for) == 1 and not self._missing()
            ):
                ended = self._waits_for.pop(event, None)
                if ended and self._waits_for.get(OperatorEvent.START) == ended:
                    self._waits_for[OperatorEvent.START] = f"before it was cleared: {ended}"
        return said

    def _missing(self) -> str:
        """Missing parts of the robot, as text."""
        return robot.missing() if isinstance(robot := self._robot, OperatorServer) else ""

    def _note_fault(self, kind: str, problem: str, age_s: float = 0.0) -> None:
        if self.faults.note(kind, problem, age_s):
            self._tell(f"{FAULT}{kind}: {problem}")

    def _tell(self, words: str) -> None:
        """Publish an event over ROS."""
        if self._report is not None:
            self._report.tell_event(words)

    def _halted(self) -> _Halted:
        if not self._waits_for:
            return _Halted(
                "the operator has halted the robot",
                hint="it was taken back: what was interrupted begins again",
            )
        words = sorted(self._waits_for)  # `start` after all others
        why = "; ".join(dict.fromkeys(self._waits_for.values()))
        ways = "the device or robot-rl console"
        if isinstance(self._robot, OperatorServer):
            ways = f"the device, robot-rl console or robot-rl doctor call=/{words[0]}"
        hint = f"to go on say {', then '.join(words)}, with {ways}"
        if OperatorEvent.START in self._waits_for:
            if missing := self._missing():
                if time.monotonic() < self._starts_until:
                    return _Halted("the robot's nodes are starting", hint=f"wait. Then {hint}")
                back = "bring back what is missing (docs/topics.md says what each is). Then"
                return _Halted("the robot is not there", got=missing, hint=f"{back} {hint}")
            return _Halted("a person has to look at the robot", got=why, hint=hint)
        return _Halted(why, hint=hint)


class FaultLog:
    """Faults that interrupted the robot, buffered until written to `faults.jsonl`.

    Each fault has its start ``time`` (ISO 8601), a ``kind`` (the error's class name) and the
    ``problem`` as text. A fault that lasts, or that ends every attempt to start an episode, counts
    once. A fault that starts within a second of another has that one's time as ``part_of``.
    """

    def __init__(self) -> None:
        self._unwritten: list[dict[str, str]] = []
        self._last = ""
        self._cause: datetime | None = None  # start of the fault that later ones may be part of

    def note(self, kind: str, problem: str, age_s: float = 0.0) -> bool:
        """Add a fault that started `age_s` seconds ago; return whether it is new."""
        sentence = problem.partition("; got: ")[0]  # the rest, such as an age, may change
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
        """Count a repeat of the last fault as new, because an episode starts."""
        self._last = ""

    def write(self, run: RunDirectory) -> int:
        """Write new faults; return how many there were, without those that have ``part_of``.

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
    """Action columns that tool motion cannot drive: all but those of a single Cartesian arm."""
    return tuple(name for name in names if name not in (*ARM_ACTIONS, GRIPPER_ACTION))


def action_of_motion(
    names: Sequence[str], motion: Motion | None, grippers: npt.ArrayLike
) -> Action:
    """Convert a motion in [-1, 1] to an action (d,); other columns are 0.

    The motion is tool motion (6,) in the base frame, or one value per joint (n,) if there are joint
    columns; None means no motion. `grippers` are -1 open to +1 closed: one value per gripper
    column, or one for all.
    """
    moved = joint_columns(names) or ARM_ACTIONS
    values = {} if motion is None else dict(zip(moved, motion.tolist(), strict=True))
    action = np.array([values.get(name, 0.0) for name in names], np.float32)
    action[gripper_columns(names)] = grippers
    return action
