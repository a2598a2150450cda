"""Robot session: defines the order of operations in a control tick."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from robot_rl.data.schema import Observation, Row, RowSchema
from robot_rl.env.coach import Coach
from robot_rl.env.input_device import InputDevice
from robot_rl.env.intervention import Operator
from robot_rl.env.operator import OperatorEvent, OperatorInbox, OperatorInput
from robot_rl.env.robot import Action, OperatorServer, RobotInterrupted, work_report_of
from robot_rl.env.robot_env import IN_PLACE, ResetResult, RobotEnv, StepResult
from robot_rl.env.task import HUMAN_VERSION, TASK_VERSION, Outcome, RewardError, RewardSource
from robot_rl.errors import RobotRLError
from robot_rl.run import RunDirectory

if TYPE_CHECKING:
    from robot_rl.data.episodes import EpisodeWriter

_POLL_SECONDS, _RETRY_SECONDS = 0.02, 0.5
_AGE = re.compile(r"[\d.]+ m?s\b")


@dataclass
class EpisodeResult:
    """Statistics and rows of one episode."""

    seed: int
    steps: int = 0  # actions executed
    success: bool = False  # whether the goal was reached
    total_reward: float = 0.0
    seconds: float = 0.0  # duration on the environment's clock [s]
    # Time until the goal was reached for good (not left again before the end); 0 without success.
    seconds_to_success: float = 0.0
    policy_version: int = 0  # version of the policy at its first step
    # Per step: time from the tick until the action was sent, and lateness of the next tick [s].
    decision_seconds: list[float] = field(default_factory=list)
    lateness_seconds: list[float] = field(default_factory=list)
    intervened_steps: int = 0  # actions that an operator took in place of the controller
    take_overs: int = 0  # how often an operator took over
    # Why the robot could not continue, if so. The effect of the last action was not observed, so it
    # has no row: the observation before it is the final one.
    interrupted: RobotInterrupted | None = None
    ended_by: OperatorEvent | None = None  # operator event that ended it, if any
    rows: list[Row] = field(default_factory=list)  # if there is a recorder but no listener
    # Reasons for which earlier attempts were repeated, and how often.
    made_again: Counter[str] = field(default_factory=Counter)
    facts: dict[str, object] = field(default_factory=dict)  # further facts to record
    instruction: str = ""  # the robot's task as text

    def keep(self, writer: EpisodeWriter, source: int) -> None:
        """Add the episode to a dataset; `source` is one of the codes of `data.schema`."""
        writer.append(
            self.rows,
            seed=self.seed,
            instruction=self.instruction,
            success=self.success,
            source=source,
        )


class Reset:
    """Reset strategy of a session. This one uses the robot's own reset.

    Attributes:
        by_person: Whether a person restores the scene.
    """

    by_person = False

    def begin(self, session: Session, seed: int) -> ResetResult:
        """Start an episode with `Session.put_back`. Entries in ``info["facts"]`` are recorded.

        Raises:
            RobotInterrupted: No episode can start now; the robot is at rest.
        """
        return session.put_back(seed)


class Watcher:
    """Passive observer of a session. Its methods never block."""

    def resetting(self) -> None:
        """Called before the robot moves to a start pose."""

    def began(self, observation: Observation, info: dict[str, Any]) -> None:
        """Called after an episode has started."""

    def stepped(self, observation: Observation, reward: float, info: dict[str, Any]) -> None:
        """Called after each step."""

    def waiting(self, reason: str) -> None:
        """Called if no episode runs. `reason` is empty if unknown."""

    def look(self) -> None:
        """Called repeatedly between episodes, to show the robot's current state."""

    def close(self) -> None:
        """Called when the session ends."""


class Session:
    """A robot, its task, the operator, a reward source and a reset, and the order of a tick.

    A tick is one `step`: read operator input, decide who acts, send, wait, observe, judge, report.
    The policy has proposed its action before, so the operator input is as recent as possible.

    An operator who moves a device takes over in that same step. The policy acts again after
    `hand_back_s` without motion; after the event `take_over`, only after `hand_back`. While the
    operator has control and does not move, the arm holds its target and every gripper keeps its
    last command.

    `stop`, `pause`, `reset` and `discard` end the episode as truncated, in a step where the robot
    holds. After `stop` the robot stays still until `clear_errors`, after `pause` until `resume`.
    Both also end a reset, even if they have been cleared meanwhile. A robot that raised
    `PersonNeeded` is not called again before `start`.

    A real robot does not move before the operator sends `start`: initially, and after every fault
    and every stop, once all other required events have arrived. Someone may be holding the cable
    that was just reconnected.

    The reward source sets reward, terminated and success of each step. The operator's `success`
    and `failure` end the episode at the next tick, with a reward of 1 or 0, regardless of the
    source. Between episodes they label the previous one: the info of the next reset has it as
    ``late_label``.

    Besides the keys of `RobotEnv`, the info of a step has ``intervened`` (whether the operator
    drove), ``operator`` (the step's `OperatorInput`), ``task_success`` (the task's own detector),
    ``reward_version`` and, with a coach, ``advice``. The info of a reset has the input since the
    last episode as ``operator``.

    Args:
        env: The environment; it must be able to continue after its task's own success.
        inbox: The operator's input; None for no operator.
        hand_back_s: Time without motion after which the policy acts again [s].
        devices: The operator's devices in this process; each is polled before every step.
        starting_s: How long from now the robot's nodes may still be starting [s].
        source: The reward source; by default the task's own detector.
        hidden: Names of observations only the source sees: hidden from policy and rows.
        reset: The reset strategy.
        coach: Advises the operator.
        run: The run directory where faults are written.
        episodes: Number of episodes before this process.

    Attributes:
        schema: Columns of the rows, without hidden observations.
        operator: The operator: required events, and input between episodes.
        inbox: The operator's input.
        watcher: Observer of the session, until the session closes it.
        observation: The latest observation, without hidden ones.
        stamp: Its time stamp [ns].
        first_observation: The episode's first observation, including hidden ones.
        result: The current or last episode.
        episode: Number of that episode, from 1.
        faults: Number of faults written so far, see `FaultLog`.
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
        self._hidden = frozenset(hidden)
        shown = tuple(f for f in env.schema.fields if f.name not in self._hidden)
        self.schema: RowSchema = replace(env.schema, fields=shown)
        self.inbox = OperatorInbox() if inbox is None else inbox
        self._is_operated = inbox is not None
        self.operator = Operator(env, self.inbox, hand_back_s, devices, starting_s)
        if inbox is not None and isinstance(env.robot, OperatorServer):
            env.robot.serve_operator(inbox, self.operator.attend)
        self._source = RewardSource() if source is None else source
        self._reset = Reset() if reset is None else reset
        self._coach, self.run = coach, run
        self.watcher = Watcher()
        self._report = work_report_of(env.robot)  # publishes to ROS observers
        self.observation: Observation = {}
        self.first_observation: Observation = {}
        self.stamp = self.faults = 0
        self.episode, self.result = episodes, EpisodeResult(0)
        self._driven = False  # whether the operator drove the last step
        self._task_success = False  # whether the task's own detector has reported success

    # -- the tick ---------------------------------------------------------------------------------

    def step(self, action: Action) -> StepResult:
        """Send the operator's action if any, else the policy's; observe, judge and report.

        Raises:
            RobotInterrupted: The robot cannot continue; it holds.
        """
        with self._problems_shown():
            said = self.operator.watch()
            observation, reward, terminated, truncated, info = self._act(action, said)
            # Judge: a time limit counts regardless of the task's own detector.
            task = Outcome(reward, terminated, truncated, bool(info["success"]))
            label = self._source.label(said.events)
            outcome, version = self._source.judge(observation, task), self._source.version
            detected = outcome.success
            if label is not None:
                outcome, version = Outcome(float(label), True, False, label), HUMAN_VERSION
            over = self.result.steps + 1 >= self.task.time_limit_steps
            truncated = (truncated or over) and not outcome.terminated
            info |= {"success": outcome.success, "task_success": task.success}
            info["reward_version"] = version
        # Report.
        result, self.stamp = self.result, int(info["stamp_observation"])
        result.steps += 1
        result.total_reward += outcome.reward
        result.seconds += self.clock.period
        if outcome.success != result.success:
            result.success = outcome.success
            result.seconds_to_success = result.seconds if result.success else 0.0
        result.decision_seconds.append(info["decision_seconds"])
        result.lateness_seconds.append(info["lateness"])
        result.intervened_steps += info["intervened"]
        result.take_overs += info["intervened"] and not self._driven
        self._driven = info["intervened"]
        self._task_success = self._task_success or task.success
        if self._coach is not None:
            self.inbox.advice = info["advice"] = self._coach.step(
                intervened=info["intervened"],
                over=outcome.terminated or over,
                success=outcome.success,
            )
        if self._is_operated:
            result.facts |= self._verdicts(label, detected)
        if self._report is not None:
            self._report.tell_step(
                self.schema.action_names, info["executed_action"], outcome.reward
            )
            if outcome.terminated or truncated:
                ended = "success" if outcome.success else "failure"
                ended += "" if outcome.terminated else ", cut short"
                self._report.tell_event(f"episode {self.episode} ends with {ended}")
        self.observation = self._visible(observation)
        self.watcher.stepped(self.observation, outcome.reward, info)
        return self.observation, outcome.reward, outcome.terminated, truncated, info

    def _act(self, action: Action, said: OperatorInput) -> StepResult:
        """Decide who acts, then step the environment."""
        action, intervened, halted = self.operator.decide(action, said)
        with self.operator.faults_noted():
            observation, reward, terminated, truncated, info = self.env.step(action)
        self.operator.show(observation)
        info |= {"intervened": intervened, "operator": said}
        # A halt ends the episode even at the goal: another reward source might let it continue.
        truncated = halted or (truncated and not terminated)
        return observation, float(reward), terminated, truncated, info

    # -- between episodes -------------------------------------------------------------------------

    def reset(self, *, seed: int) -> ResetResult:
        """Start an episode with the policy acting.

        Raises:
            RobotInterrupted: The operator has halted the robot or must inspect it, or it cannot
                start; it holds.
            RewardError: The observation lacks a field that the source reads.
        """
        self.watcher.resetting()
        try:
            with self._problems_shown():
                if self._coach is not None:
                    self._coach.begin()
                    self.inbox.advice = ""
                observation, info = self._reset.begin(self, seed)
                late = self._source.label(info["operator"].events)
                info["late_label"] = late if self.result.steps else None
                if missing := [name for name in self._source.observed if name not in observation]:
                    raise RewardError(
                        f"the reward needs the observation {missing[0]!r}",
                        got=sorted(observation),
                        expected=sorted(self._source.observed),
                        hint="name the cameras of the reward with reward.cameras",
                    )
                self._source.reset(observation)
        except RobotInterrupted:  # meanwhile a person may be looking at the scene
            self.look()
            raise
        self._task_success = self._driven = False
        facts, instruction = dict(info.get("facts", {})), self.task.instruction
        if self._is_operated:
            facts |= self._verdicts(None, detected=False)
        self.result = EpisodeResult(seed, facts=facts, instruction=instruction)
        self.episode += 1
        self.first_observation, self.stamp = observation, int(info["stamp_observation"])
        self.observation = self._visible(observation)
        if self._report is not None:
            self._report.tell_event(f"episode {self.episode} begins with seed {seed}")
        self.watcher.began(self.observation, info)
        return self.observation, info

    def put_back(self, seed: int, *, in_place: bool = False) -> ResetResult:
        """Reset robot and scene, or start `in_place`; see `RobotEnv`. Called by a `Reset`.

        Raises:
            RobotInterrupted: As `reset`.
        """
        self.operator.overhear()
        self.operator.check_free()
        with self.operator.faults_noted():
            observation, info = self.env.reset(seed=seed, options=IN_PLACE if in_place else None)
        said = self.operator.begin(seed, observation)
        return observation, {**info, "intervened": False, "operator": said}

    def move(self, action: Action) -> ResetResult:
        """Take one step of a reset motion between episodes, with the operator active as usual."""
        observation, *_, info = self._act(action, self.operator.overhear())
        return observation, info

    def when_free(
        self,
        seeds: Iterable[int],
        note: Callable[[str], None],
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[int]:
        """Yield each seed once the robot is free to move; see `wait_until_free`."""
        for seed in seeds:
            self.wait_until_free(stopped, note)
            if stopped():
                return
            yield seed

    def wait_until_free(self, stopped: Callable[[], bool], note: Callable[[str], None]) -> None:
        """Block between episodes until the operator has sent all required events.

        `stopped` ends the wait, and `note` is called with the reason. A device that fails
        meanwhile is polled again until it recovers.
        """
        noted = problem = ""
        while self.operator.waits_for:
            self.look()
            if stopped():
                break
            reason = problem or f"waiting: {self.operator.waiting()}"
            lasting = _AGE.sub("", reason)  # ages change constantly
            if lasting != noted:
                self.say_waiting(reason, note)
                noted = lasting
            time.sleep(_RETRY_SECONDS if problem else _POLL_SECONDS)
            try:
                self.operator.overhear()
                problem = ""
            except RobotInterrupted as error:
                problem = problem or f"waiting: {error}"
        if noted and not self.operator.waits_for:
            self.keep_faults()
            note("the operator lets the robot go on")

    def say_waiting(self, reason: str, note: Callable[[str], None]) -> None:
        """Report to `note` and the watcher why no episode starts, and write faults."""
        self.keep_faults()
        note(reason)
        self.watcher.waiting(reason)

    def look(self) -> None:
        """Update the watcher. Called repeatedly between episodes."""
        self.watcher.look()

    def keep_faults(self) -> None:
        """Write new faults to the run, between episodes; `RunError` on a full disk."""
        if self.run is not None:
            self.faults += self.operator.faults.write(self.run)

    @property
    def scene_put_back_by_person(self) -> bool:
        """Whether a person restores the scene before each episode."""
        return self._reset.by_person

    def close(self) -> None:
        """Close the watcher, hold and release the robot, then close devices; idempotent.

        All are closed, even if one raises.
        """
        with ExitStack() as parts:  # closed in reverse order
            for device in self.operator.devices:
                parts.callback(device.close)
            parts.callback(self.env.close)
            parts.callback(self.watcher.close)
            self.operator.devices, self.watcher = (), Watcher()

    def _visible(self, observation: Observation) -> Observation:
        if not self._hidden:
            return observation
        return {name: v for name, v in observation.items() if name not in self._hidden}

    def _verdicts(self, label: bool | None, detected: bool) -> dict[str, Any]:
        """Facts to record after a step: success verdicts by source, and the advice."""
        facts: dict[str, Any] = {"operator_success": label}
        if self._source.version != HUMAN_VERSION:
            facts["detector_success"] = detected
        if self._source.version != TASK_VERSION:
            facts |= {"task_success": self._task_success, "reward_alarm": self._source.alarm}
        return facts if self._coach is None else {**facts, **self._coach.facts}

    @contextmanager
    def _problems_shown(self) -> Iterator[None]:
        """Report errors to the watcher."""
        try:
            yield
        except RobotRLError as error:
            self.watcher.waiting(str(error))
            raise
