"""One robot at work: the one place that knows the order of a tick."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from robot_rl.data.schema import LAST_COMMAND, Observation, RowSchema
from robot_rl.env.coach import Coach
from robot_rl.env.input_device import InputDevice
from robot_rl.env.intervention import (
    FaultLog,
    Halted,
    TakeOver,
    Waits,
    action_of_motion,
    unmovable_columns,
)
from robot_rl.env.judge import HUMAN_VERSION, TASK_VERSION, RewardError, RewardSource
from robot_rl.env.operator import HALTS, OperatorEvent, OperatorInbox, OperatorInput
from robot_rl.env.robot import (
    FAULT,
    Action,
    OperatorServer,
    PersonNeeded,
    RobotInterrupted,
    gripper_columns,
    joint_columns,
    watchers_of,
)
from robot_rl.env.robot_env import IN_PLACE, Begun, RobotEnv, Stepped
from robot_rl.env.task import Outcome
from robot_rl.errors import RobotRLError
from robot_rl.run import RunDirectory

_POLL_SECONDS, _RETRY_SECONDS = 0.02, 0.5
_AGE = re.compile(r"[\d.]+ m?s\b")
# What ends an episode with the robot holding still.
_ENDS = (*HALTS, OperatorEvent.RESET, OperatorEvent.DISCARD)


class Reset:
    """How a session comes to the start of an episode; here by the robot's own reset.

    Attributes:
        by_person: Whether a person puts the scene back.
    """

    by_person = False

    def begin(self, session: Session, seed: int) -> Begun:
        """Begin an episode with `Session.put_back`; what it adds to ``info["facts"]`` is recorded.

        Raises:
            RobotInterrupted: None can begin now; the robot is at rest.
        """
        return session.put_back(seed)


class Watcher:
    """Sees what happens in a session, and has no say in it. None of its methods waits."""

    def resetting(self) -> None:
        """The robot is about to be brought to a start."""

    def begun(self, observation: Observation, info: dict[str, Any]) -> None:
        """An episode has begun."""

    def stepped(
        self, observation: Observation, reward: float, over: bool, info: dict[str, Any]
    ) -> None:
        """A step of it was taken; `over` if it was the last."""

    def waiting(self, reason: str) -> None:
        """No episode runs; empty where nothing is known of why."""

    def look(self) -> None:
        """Between episodes, again and again: see the robot as it is now."""

    def close(self) -> None:
        """The session ends."""


class Session:
    """A robot, its task, the operator, a reward source and a reset, and the order of a tick.

    A tick is `step`: hear the operator, decide who acts, send, wait, observe, judge, tell. The
    policy has proposed its action before, so that the operator is heard as late as can be.

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

    The reward source sets reward, terminated and success of each step. `success` and `failure` of
    the operator end the episode at the next tick, with a reward of 1 or 0, whatever the source
    says. What they say between two episodes is about the one before: it is the ``late_label`` in
    the info of the next reset.

    Beside what `RobotEnv` says, the info of a step has ``intervened``, whether the operator drove
    it; ``operator``, the `OperatorInput` of that step; ``task_success``, what the task's own
    detector said; ``reward_version``; and ``advice``, where there is a coach. What was said between
    two episodes is the ``operator`` of the next reset.

    Args:
        env: The environment; it must be able to go on after its task's own success.
        inbox: Where the operator writes; this is its one reader. Without one there is no operator.
        hand_back_s: Time without motion after which the policy acts again [s].
        devices: What is asked before every step.
        starting_s: Time from now in which the robot's own nodes may still be starting [s].
        source: Who judges; by default the task's own detector.
        hidden: Observation names that are there for the source alone: neither the policy nor the
            rows see them.
        reset: How it comes to the start of an episode.
        coach: Who gives the operator advice, if anybody.
        run: Where faults are written, if anywhere.
        episodes: How many episodes were before the first one of this process.

    Attributes:
        schema: Columns of the rows, without what only the source sees.
        inbox: Where the operator writes.
        devices: What is asked before every step.
        ended_by: What the operator ended the present or last episode with, if so.
        observation: The newest, with what only the source sees.
        first_observation: That of the episode's begin.
        faults: How many faults were written so far, see `FaultLog`.
        episode: Number of the present or last episode, from 1.
        steps: Steps of it.
        total_reward: The sum of its rewards.
        intervened_steps: Those of its steps in which the operator acted.
    """

    def __init__(
        self,
        env: RobotEnv,
        inbox: OperatorInbox | None = None,
        *,
        hand_back_s: float = 0.5,
        devices: Sequence[InputDevice] = (),
        starting_s: float = 0.0,
        source: RewardSource | None = None,
        hidden: Iterable[str] = (),
        reset: Reset | None = None,
        coach: Coach | None = None,
        run: RunDirectory | None = None,
        episodes: int = 0,
    ) -> None:
        self.env, self.robot, self.task, self.clock = env, env.robot, env.task, env.clock
        self.inbox = OperatorInbox() if inbox is None else inbox
        self._has_operator = inbox is not None
        self._hidden = frozenset(hidden)
        shown = tuple(f for f in env.schema.fields if f.name not in self._hidden)
        self.schema: RowSchema = replace(env.schema, fields=shown)
        self._names = env.schema.action_names
        self._gripper_columns = gripper_columns(self._names)
        self.devices: tuple[InputDevice, ...] = tuple(devices)
        self._source = RewardSource() if source is None else source
        self._reset = Reset() if reset is None else reset
        self._coach, self.run = coach, run
        self._watchers: list[Watcher] = []
        self._report = watchers_of(env.robot)  # to those who watch the robot over ROS
        self._take_over = TakeOver(max(1, math.ceil(hand_back_s / env.clock.period - 1e-9)))
        self._waits = Waits(env.robot, self.inbox, starting_s)
        self._faults = FaultLog()
        self._unread: list[OperatorEvent] = []
        self.ended_by: OperatorEvent | None = None
        self.observation: Observation = {}
        self.first_observation: Observation = {}
        self.faults = 0
        self.episode = episodes
        self.steps, self.total_reward, self.intervened_steps = 0, 0.0, 0
        self._label: bool | None = None
        self._task_success = self._detected = False
        self.inbox.unmovable = unmovable_columns(self._names)
        self.inbox.joints = joint_columns(self._names)
        self.inbox.missing = self._waits.missing
        if inbox is not None and isinstance(env.robot, OperatorServer):
            env.robot.serve_operator(inbox, self.attend)

    # -- the tick ---------------------------------------------------------------------------------

    def step(self, action: Action) -> Stepped:
        """Send the operator's action, if there is one, else the policy's; observe, judge and tell.

        Raises:
            RobotInterrupted: The robot cannot go on; it holds.
        """
        with self._problems_shown():
            self._ask(lambda device: device.watch(self.observation))
            observation, reward, terminated, truncated, info = self._move(action)
            self.steps += 1
            # Judge: a time limit counts whatever the task's own detector says.
            task = Outcome(reward, terminated, truncated, bool(info["success"]))
            self._label = self._source.label(info["operator"].events)
            outcome, version = self._source.judge(observation, task), self._source.version
            self._detected = outcome.success
            self._task_success = self._task_success or task.success
            if self._label is not None:
                outcome = Outcome(float(self._label), True, False, self._label)
                version = HUMAN_VERSION
            timed_out = self.steps >= self.task.time_limit_steps
            truncated = (truncated or timed_out) and not outcome.terminated
            info |= {"success": outcome.success, "task_success": task.success}
            info["reward_version"] = version
        # Tell.
        intervened = info["intervened"]
        self.intervened_steps += intervened
        self.total_reward += outcome.reward
        if self._coach is not None:
            over = outcome.terminated or timed_out
            advice = self._coach.step(intervened=intervened, over=over, success=outcome.success)
            self.inbox.advice = info["advice"] = advice
        if self._report is not None:
            self._report.tell_step(self._names, info["executed_action"], outcome.reward)
            if outcome.terminated or truncated:
                ended = "success" if outcome.success else "failure"
                ended += "" if outcome.terminated else ", cut short"
                self._report.tell_event(f"episode {self.episode} ends with {ended}")
        observation = self._visible(observation)
        for watcher in self._watchers:
            over = outcome.terminated or truncated
            watcher.stepped(observation, outcome.reward, over, info)
        return observation, outcome.reward, outcome.terminated, truncated, info

    def _move(self, action: Action) -> Stepped:
        """Hear the operator, decide who acts, and send, wait and observe with the environment."""
        said = self._polled()
        self.ended_by = next((event for event in said.events if event in _ENDS), None)
        halted = bool(self._waits.events) or self.ended_by is not None
        # Who halts the robot teaches nothing.
        intervened = self._take_over.step(said) and not halted
        if halted:
            self.robot.hold()
            said = said._replace(motion=np.zeros_like(said.motion), gripper=None)
        if intervened or halted:
            kept = self.observation[LAST_COMMAND][self._gripper_columns]
            grippers = kept if said.gripper is None else said.gripper
            action = action_of_motion(self._names, said.motion, grippers)
        with self._faults_noted():
            observation, reward, terminated, truncated, info = self.env.step(action)
        self._note_observation(observation)
        info |= {"intervened": intervened, "operator": said}
        # Even where the task says that it is done: who judges otherwise would let it go on.
        truncated = halted or (truncated and not terminated)
        return observation, float(reward), terminated, truncated, info

    # -- between episodes -------------------------------------------------------------------------

    def reset(self, *, seed: int) -> Begun:
        """Begin an episode with the policy acting.

        Raises:
            RobotInterrupted: The operator has halted the robot or has to look at it, or it cannot
                begin; it holds.
            RewardError: The observation lacks what the source reads.
        """
        for watcher in self._watchers:
            watcher.resetting()
        try:
            with self._problems_shown():
                if self._coach is not None:
                    self._coach.begin()
                    self.inbox.advice = ""
                observation, info = self._reset.begin(self, seed)
                late = self._source.label(info["operator"].events)
                info["late_label"] = late if self.steps else None
                if missing := [name for name in self._source.observed if name not in observation]:
                    raise RewardError(
                        f"the reward needs the observation {missing[0]!r}",
                        got=sorted(observation),
                        expected=sorted(self._source.observed),
                        hint="name the cameras of the reward with reward.cameras",
                    )
                self._source.reset(observation)
        except RobotInterrupted:  # a person who puts the scene back looks at it meanwhile
            self.look()
            raise
        self.first_observation = observation
        self.steps, self.total_reward, self.intervened_steps = 0, 0.0, 0
        self._label, self._task_success, self._detected = None, False, False
        self.episode += 1
        if self._report is not None:
            self._report.tell_event(f"episode {self.episode} begins with seed {seed}")
        observation = self._visible(observation)
        for watcher in self._watchers:
            watcher.begun(observation, info)
        return observation, info

    def put_back(self, seed: int, *, in_place: bool = False) -> Begun:
        """For a `Reset`: bring robot and scene to a start, or begin `in_place`; see `RobotEnv`.

        Raises:
            RobotInterrupted: As `reset`.
        """
        self.overhear()
        self.check_free()
        try:
            with self._faults_noted():
                options = IN_PLACE if in_place else None
                observation, info = self.env.reset(seed=seed, options=options)
        except PersonNeeded as problem:
            self._note_fault(type(problem).__name__, str(problem))
            self.wait_for_start(str(problem))
            raise self._waits.halted() from problem
        self.observation = observation
        self._faults.forget_last()
        self._ask(lambda device: device.begin(seed))
        # What was pressed during the reset may wait in a device; it is not about this episode.
        said = self.hear()
        self._unread += said.events
        self.check_free(said.events)
        events, self._unread = tuple(self._unread), []
        self.let_go()
        self._note_observation(observation)
        self.ended_by = None
        return observation, {
            **info,
            "intervened": False,
            "operator": said._replace(events=events),
        }

    def move(self, action: Action) -> Begun:
        """A step of a reset motion, between episodes, in which the operator is heard as ever."""
        self._ask(lambda device: device.listen(self.observation))
        observation, *_, info = self._move(action)
        self._unread += info["operator"].events
        return observation, info

    def let_go(self) -> None:
        """End what the operator did in the last episode: from now on the policy acts."""
        self._take_over.end()

    def hear(self) -> OperatorInput:
        """Between episodes: what the operator has said and does now."""
        self._ask(lambda device: device.listen(self.observation))
        return self._polled()

    def overhear(self) -> OperatorInput:
        """As `hear`, but what is said is in the info of the next reset too."""
        said = self.hear()
        self._unread += said.events
        return said

    def attend(self) -> None:
        """While the robot is moved between episodes, not by `move`: hear and `check_free`."""
        self.check_free(self.overhear().events)

    def check_free(self, heard: Sequence[OperatorEvent] = ()) -> None:
        """Raise `RobotInterrupted` where the robot may not move.

        Among the events `heard` a halt counts even if it was taken back since.
        """
        self._waits.check_free(heard)

    @property
    def waits_for(self) -> frozenset[OperatorEvent]:
        """What the operator must say before anything moves again."""
        return self._waits.events

    def waiting(self) -> str:
        """What the robot waits for and why, in words; empty where it may move."""
        return str(self._waits.halted()) if self._waits.events else ""

    def wait_for_start(self, why: str) -> None:
        """Between episodes: let nothing move before a person's `start`."""
        self._unread += self._polled().events  # a `start` of before is about something else
        self._waits.add(OperatorEvent.START, why)

    def wait_until_free(self, stopped: Callable[[], bool], note: Callable[[str], None]) -> None:
        """Wait, between episodes, while the robot waits for what a person has to say.

        `stopped` ends the waiting, and `note` is called with what is waited for. A device that
        fails meanwhile is asked again until it does not.
        """
        noted = problem = ""
        while self.waits_for:
            self.look()
            if stopped():
                break
            reason = problem or f"waiting: {self.waiting()}"
            lasting = _AGE.sub("", reason)  # how old something is changes all the time
            if lasting != noted:
                self.say_waiting(reason, note)
                noted = lasting
            time.sleep(_RETRY_SECONDS if problem else _POLL_SECONDS)
            try:
                self.overhear()
                problem = ""
            except RobotInterrupted as error:
                problem = problem or f"waiting: {error}"
        if noted and not self.waits_for:
            self.keep_faults()
            note("the operator lets the robot go on")

    def say_waiting(self, reason: str, note: Callable[[str], None]) -> None:
        """Between episodes: say why none begins, to `note` and to watchers; write faults."""
        self.keep_faults()
        note(reason)
        for watcher in self._watchers:
            watcher.waiting(reason)

    def look(self) -> None:
        """Between episodes, again and again: let watchers see the robot."""
        for watcher in self._watchers:
            watcher.look()

    def keep_faults(self) -> None:
        """Between episodes: write what kept the robot from going on; `RunError` on a full disk."""
        if self.run is not None:
            self.faults += self._faults.write(self.run)

    # -- what it is made of -----------------------------------------------------------------------

    @property
    def facts(self) -> dict[str, object]:
        """What to record of the episode beside its rewards: who called it a success.

        Nothing where no operator can be heard.
        """
        if not self._has_operator:
            return {}
        facts: dict[str, object] = {"operator_success": self._label}
        if self._source.version != HUMAN_VERSION:
            facts["detector_success"] = self._detected
        if self._source.version != TASK_VERSION:
            facts |= {"task_success": self._task_success, "reward_alarm": self._source.alarm}
        return facts if self._coach is None else {**facts, **self._coach.facts}

    @property
    def scene_put_back_by_person(self) -> bool:
        """Whether a person puts the scene back before each episode."""
        return self._reset.by_person

    def watch(self, watcher: Watcher) -> None:
        """Let a watcher see what happens from now on, until the session closes it."""
        self._watchers.append(watcher)

    def close(self) -> None:
        """Release the watchers, hold and release the robot, then its devices; may be called again.

        One that cannot be closed keeps none of the others open.
        """
        with ExitStack() as parts:  # the last to be added is the first to be closed
            for device in self.devices:
                parts.callback(device.close)
            parts.callback(self.env.close)
            for watcher in self._watchers:
                parts.callback(watcher.close)
            self.devices, self._watchers = (), []

    def _visible(self, observation: Observation) -> Observation:
        if not self._hidden:
            return observation
        return {name: v for name, v in observation.items() if name not in self._hidden}

    def _note_observation(self, observation: Observation) -> None:
        self.observation = observation
        if len(self._gripper_columns) == 1:  # for devices whose button opens and closes in turn
            self.inbox.gripper = float(observation[LAST_COMMAND][self._gripper_columns[0]])

    def _ask(self, question: Callable[[InputDevice], None]) -> None:
        """Ask all devices; where one fails the robot holds."""
        try:
            with self._faults_noted():
                for device in self.devices:
                    question(device)
        except RobotInterrupted:
            self.robot.hold()
            raise

    def _polled(self) -> OperatorInput:
        """Read the inbox, and note what the robot waits for from now on."""
        said = self.inbox.poll()
        for event in said.events:
            self._tell(f"operator: {event}")
            if event is OperatorEvent.STOP and (why := self.inbox.why_stopped()):
                self._note_fault("ArmStopped", why, self.inbox.stopped_for())
            self._waits.take(event)
        return said

    @contextmanager
    def _faults_noted(self) -> Iterator[None]:
        """Let a real robot wait for a person after a fault, and any robot after some."""
        try:
            yield
        except Halted:
            raise
        except RobotInterrupted as fault:
            self._note_fault(type(fault).__name__, str(fault), fault.age_s)
            if fault.needs_start or not self.robot.simulated:
                self.wait_for_start(str(fault))
            raise

    @contextmanager
    def _problems_shown(self) -> Iterator[None]:
        """Let watchers know what goes wrong inside."""
        try:
            yield
        except RobotRLError as error:
            for watcher in self._watchers:
                watcher.waiting(str(error))
            raise

    def _note_fault(self, kind: str, problem: str, age_s: float = 0.0) -> None:
        if self._faults.note(kind, problem, age_s):
            self._tell(f"{FAULT}{kind}: {problem}")

    def _tell(self, words: str) -> None:
        if self._report is not None:
            self._report.tell_event(words)
