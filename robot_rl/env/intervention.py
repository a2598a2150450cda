"""Interventions: an operator acts in place of the policy, and says what else is to happen."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Protocol

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import LAST_COMMAND, Observation
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
    watchers_of,
)
from robot_rl.env.robot_env import Begun, Options, RobotEnv, RobotEnvWrapper, Stepped
from robot_rl.run import FAULTS, RunDirectory

_POLL_SECONDS, _RETRY_SECONDS = 0.02, 0.5
_AGE = re.compile(r"[\d.]+ m?s\b")
# Faults that begin so soon after another have its cause: one cut cable ends many things.
_ONE_CAUSE = timedelta(seconds=1.0)
# What ends an episode with the robot holding still.
_ENDS = (*HALTS, OperatorEvent.RESET, OperatorEvent.DISCARD)
_NOT_YET = "this process has not moved it yet"
_STOPPED, _PAUSED = "the operator has stopped the robot", "the operator has paused the robot"


class _Halted(RobotInterrupted):
    """The robot waits for what a person has to say."""


class Attendant(Protocol):
    """An operator in the loop's own process, such as the simulated one."""

    def begin(self, seed: int) -> None:
        """An episode begins."""

    def watch(self, observation: Observation) -> None:
        """Before a step: look at the robot or at a device, and write to the inbox.

        Raises:
            RobotInterrupted: Nobody watches any more; the robot holds still.
        """

    def listen(self, observation: Observation) -> None:
        """Between episodes: pass on what is said, without a robot to move. As `watch`."""

    def close(self) -> None:
        """Release what it holds."""


class Intervention(RobotEnvWrapper):
    """Lets an operator take over, hand back, pause and stop.

    An operator who moves a device takes over at that very step; the policy acts again when nothing
    has moved for `hand_back_s`. After the event `take_over` it acts again after `hand_back` only.
    While the operator has the robot and does not move it, the arm holds its target and every
    gripper keeps its last command.

    `stop`, `pause`, `reset` and `discard` end the episode as truncated, in a step in which the
    robot holds. After `stop` nothing moves before `clear_errors`, after `pause` nothing before
    `resume`. Both end a reset too, even if they were taken back meanwhile. A robot that raised
    `PersonNeeded` is not asked again before `start`.

    A robot that is not simulated moves nothing before a person's `start`: at first, and after every
    fault and every stop, once whatever else it waits for has been said. Somebody may be holding the
    cable that has just come back.

    The info of a step has ``intervened``, whether the operator drove it, and ``operator``, the
    `OperatorInput` of that step. What is said between two episodes is in the info of the next
    reset.

    Args:
        env: The environment.
        inbox: Where the operator writes; this is its one reader.
        hand_back_s: Time without motion after which the policy acts again [s].
        attendants: Operators and devices that are asked before every step.
        starting_s: Time from now in which the robot's own nodes may still be starting [s].

    Attributes:
        ended_by: What the operator ended the present or last episode with, if so.
    """

    def __init__(
        self,
        env: RobotEnv | RobotEnvWrapper,
        inbox: OperatorInbox,
        hand_back_s: float,
        attendants: Sequence[Attendant] = (),
        starting_s: float = 0.0,
    ) -> None:
        super().__init__(env)
        self._starts_until = time.monotonic() + starting_s
        self._inbox = inbox
        self._attendants = tuple(attendants)
        self._observation: Observation = {}
        self._names = self.schema.action_names
        inbox.unmovable = unmovable_columns(self._names)
        inbox.joints = joint_columns(self._names)
        inbox.missing = self._missing
        self._hold_steps = max(1, math.ceil(hand_back_s / self.clock.period - 1e-9))
        self.let_go()
        self._gripper_columns = gripper_columns(self._names)
        self._waits_for: dict[OperatorEvent, str] = {}  # and why
        if not self.robot.simulated:
            self._waits_for[OperatorEvent.START] = _NOT_YET
        self._unread: list[OperatorEvent] = []
        self._faults: list[dict[str, str]] = []
        self._last_fault = ""
        self._cause: datetime | None = None  # when the fault began that others may be parts of
        self.ended_by: OperatorEvent | None = None

    @property
    def waits_for(self) -> frozenset[OperatorEvent]:
        """What the operator must say before anything moves again."""
        return frozenset(self._waits_for)

    def reset(self, *, seed: int | None = None, options: Options = None) -> Begun:
        """Begin an episode with the policy acting.

        Raises:
            RobotInterrupted: The operator has halted the robot, or has to look at it; it holds.
        """
        self.overhear()
        self.check_free()
        try:
            with self._faults_noted():
                observation, info = super().reset(seed=seed, options=options)
        except PersonNeeded as problem:
            self._note_fault(type(problem).__name__, str(problem))
            self.wait_for_start(str(problem))
            raise self._halted() from problem
        self._observation, self._last_fault = observation, ""
        self._ask(lambda attendant: attendant.begin(0 if seed is None else seed))
        # What was pressed during the reset may wait in a device; it is not about this episode.
        self._ask(lambda attendant: attendant.listen(observation))
        said = self._polled()
        self._unread += said.events
        self.check_free(said.events)
        said = said._replace(events=tuple(self._unread))
        self._unread.clear()
        self.let_go()
        self._note_gripper(observation)
        self.ended_by = None
        return observation, {**info, "intervened": False, "operator": said}

    def step(self, action: Action) -> Stepped:
        """Send the operator's action, if there is one, else the policy's."""
        self._ask(lambda attendant: attendant.watch(self._observation))
        return self._act(action)

    def move(self, action: Action) -> Begun:
        """A step of a reset motion, between episodes, in which the operator is heard as ever."""
        self._ask(lambda attendant: attendant.listen(self._observation))
        observation, *_, info = self._act(action)
        self._unread += info["operator"].events
        return observation, info

    def let_go(self) -> None:
        """End what the operator did in the last episode: from now on the policy acts."""
        self._kept, self._moved_steps = False, 0

    def _act(self, action: Action) -> Stepped:
        said = self._polled()
        self.ended_by = next((event for event in said.events if event in _ENDS), None)
        over = bool(self._waits_for) or self.ended_by is not None
        intervened = self._takes_over(said) and not over  # who halts the robot teaches nothing
        if over:
            self.robot.hold()
            said = said._replace(motion=np.zeros_like(said.motion), gripper=None)
        if intervened or over:
            told = self._observation[LAST_COMMAND][self._gripper_columns]
            grippers = told if said.gripper is None else said.gripper
            action = action_of_motion(self._names, said.motion, grippers)
        with self._faults_noted():
            observation, reward, terminated, truncated, info = super().step(action)
        self._observation = observation
        self._note_gripper(observation)
        # Even where the task says that it is done: who judges otherwise would let it go on.
        truncated = over or (truncated and not terminated)
        info |= {"intervened": intervened, "operator": said}
        return observation, float(reward), terminated, truncated, info

    def hear(self) -> OperatorInput:
        """Between episodes: what the operator has said and does now."""
        self._ask(lambda attendant: attendant.listen(self._observation))
        return self._polled()

    def overhear(self) -> OperatorInput:
        """As `hear`, but what is said is in the info of the next reset too."""
        said = self.hear()
        self._unread += said.events
        return said

    def _polled(self) -> OperatorInput:
        """Read the inbox, and note what the robot waits for from now on."""
        said = self._inbox.poll()
        for event in said.events:
            self._tell(f"operator: {event}")
            if event is OperatorEvent.STOP:
                why = self._inbox.why_stopped()
                if why:
                    self._note_fault("ArmStopped", why, self._inbox.stopped_for())
                why = why or _STOPPED
                self._waits_for.setdefault(OperatorEvent.CLEAR_ERRORS, why)
                if not self.robot.simulated:
                    self._waits_for.setdefault(OperatorEvent.START, why)
            elif event is OperatorEvent.PAUSE:
                self._waits_for[OperatorEvent.RESUME] = _PAUSED
            elif event is not OperatorEvent.START or self._may_start():
                ended = self._waits_for.pop(event, None)
                if ended and self._waits_for.get(OperatorEvent.START) == ended:
                    self._waits_for[OperatorEvent.START] = f"before it was cleared: {ended}"
        return said

    def keep_faults(self, run: RunDirectory) -> int:
        """Between episodes: add what kept the robot from going on to the run's `faults.jsonl`.

        Each has a ``time`` (ISO 8601) at which it began, a ``kind``, the name of the error's class,
        and the ``problem`` in words. One that lasts, or ends every attempt to begin an episode, is
        one. What began within a second of it is ``part_of`` it: its time. Returns how many there
        were since this was asked before, parts not counted; `RunError` on a full disk.
        """
        kept, self._faults = self._faults, []
        for fault in kept:
            run.append_jsonl(FAULTS, fault)
        return sum("part_of" not in fault for fault in kept)

    def attend(self) -> None:
        """While the robot is moved between episodes, not by `move`: hear and `check_free`."""
        self.check_free(self.overhear().events)

    def check_free(self, heard: Sequence[OperatorEvent] = ()) -> None:
        """Raise `RobotInterrupted` where the robot may not move.

        Among the events `heard` a halt counts even if it was taken back since.
        """
        if self._waits_for or any(event in HALTS for event in heard):
            raise self._halted()

    def waiting(self) -> str:
        """What the robot waits for and why, in words; empty where it may move."""
        return str(self._halted()) if self._waits_for else ""

    def wait_until_free(self, stopped: Callable[[], bool], note: Callable[[str], None]) -> None:
        """Wait, between episodes, while the robot waits for what a person has to say.

        `stopped` ends the waiting, and `note` is told what is waited for. An attendant that fails
        meanwhile is asked again until it does not.
        """
        told = problem = ""
        while self._waits_for and not stopped():
            reason = problem or f"waiting: {self.waiting()}"
            lasting = _AGE.sub("", reason)  # how old something is changes all the time
            if lasting != told:
                note(reason)
                told = lasting
            time.sleep(_RETRY_SECONDS if problem else _POLL_SECONDS)
            try:
                self.overhear()
                problem = ""
            except RobotInterrupted as error:
                problem = problem or f"waiting: {error}"
        if told and not self._waits_for:
            note("the operator lets the robot go on")

    def close(self) -> None:
        """Release devices, and close the environment."""
        super().close()
        for attendant in self._attendants:
            attendant.close()

    def _ask(self, question: Callable[[Attendant], None]) -> None:
        try:
            with self._faults_noted():
                for attendant in self._attendants:
                    question(attendant)
        except RobotInterrupted:
            self.robot.hold()
            raise

    @contextmanager
    def _faults_noted(self) -> Iterator[None]:
        """Let a real robot wait for a person after a fault, and any robot after some."""
        try:
            yield
        except _Halted:
            raise
        except RobotInterrupted as fault:
            self._note_fault(type(fault).__name__, str(fault), fault.age_s)
            if fault.needs_start or not self.robot.simulated:
                self.wait_for_start(str(fault))
            raise

    def _note_fault(self, kind: str, problem: str, age_s: float = 0.0) -> None:
        sentence = problem.partition("; got: ")[0]  # what follows, such as an age, may change
        if sentence != self._last_fault:
            began = datetime.now().astimezone() - timedelta(seconds=age_s)
            time = began.isoformat(timespec="milliseconds")
            fault = {"time": time, "kind": kind, "problem": problem}
            if self._cause is not None and abs(began - self._cause) <= _ONE_CAUSE:
                fault["part_of"] = self._cause.isoformat(timespec="milliseconds")
            else:
                self._cause = began
            self._faults.append(fault)
            self._tell(f"{FAULT}{kind}: {problem}")
        self._last_fault = sentence

    def _may_start(self) -> bool:
        return len(self._waits_for) == 1 and not self._missing()

    def _missing(self) -> str:
        """What the robot itself says of what is not there."""
        return robot.missing() if isinstance(robot := self.robot, OperatorServer) else ""

    def _tell(self, words: str) -> None:
        if (watchers := watchers_of(self.robot)) is not None:
            watchers.tell_event(words)

    def wait_for_start(self, why: str) -> None:
        """Between episodes: let nothing move before a person's `start`."""
        self._unread += self._polled().events  # a `start` of before is about something else
        self._waits_for[OperatorEvent.START] = why

    def _halted(self) -> _Halted:
        if not self._waits_for:
            return _Halted(
                "the operator has halted the robot",
                hint="it was taken back: what was interrupted begins anew",
            )
        words = sorted(self._waits_for)  # `start` after all others
        why = "; ".join(dict.fromkeys(self._waits_for.values()))
        ways = "the device or robot-rl console"
        if isinstance(self.robot, OperatorServer):
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

    def _note_gripper(self, observation: Observation) -> None:
        """Let devices whose button toggles the one gripper know what it was told last."""
        if len(self._gripper_columns) == 1:
            self._inbox.gripper = float(observation[LAST_COMMAND][self._gripper_columns[0]])

    def _takes_over(self, said: OperatorInput) -> bool:
        """Who acts in this step, from what was said and done until now."""
        for event in said.events:
            if event is OperatorEvent.TAKE_OVER:
                self._kept = True
            elif event is OperatorEvent.HAND_BACK:
                self.let_go()
        if said.moving:
            self._moved_steps = self._hold_steps
            return True
        holding = self._moved_steps > 0
        self._moved_steps -= holding
        return self._kept or holding


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
