"""The one loop that runs episodes: collecting, acting and evaluating all go through it."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, unique
from typing import TYPE_CHECKING, Protocol

import numpy as np

from robot_rl.data.rows import Active, Executed, Instructions, RowBuilder, Seen, Slots
from robot_rl.data.schema import Observation, Row
from robot_rl.env.operator import OperatorEvent
from robot_rl.env.robot import RobotInterrupted
from robot_rl.env.session import Session

if TYPE_CHECKING:
    from policies.runner import Conclusion, Decision
    from robot_rl.data.episodes import EpisodeWriter

# Top bit set: no training episode ever has the seed of an evaluation episode.
_TRAINING_SEED_BIT = 1 << 31
# Between two attempts to begin an episode on a robot that cannot, and between two words about it.
_RETRY_SECONDS, _REMIND_SECONDS = 0.2, 10.0


@unique
class SeedStream(IntEnum):
    """What episodes are run for: each purpose has seeds of its own."""

    DEMONSTRATIONS = 0
    ACTING = 1  # of the first session of the first actor, and counted on from there
    GATHERING = (1 << 31) - 7
    DEPLOYMENT = (1 << 31) - 6
    LABELLED_EXAMPLES = (1 << 31) - 5
    CORRECTIONS = (1 << 31) - 4
    SUCCESS_EXAMPLES = (1 << 31) - 3
    FAILURE_EXAMPLES = (1 << 31) - 2
    EXPLORATION = (1 << 31) - 1


class Controller(Protocol):
    """Who decides: a policy runner, or a scripted expert. Slots are episodes side by side."""

    def reset(
        self, slots: Slots = None, *, seeds: Sequence[int], instructions: Instructions = None
    ) -> None:
        """Begin episodes in `slots` with one seed and one instruction each."""

    def act(self, observation: Seen, active: Active = None) -> Decision:
        """Decide one step from observations (slots, …); inactive slots are not read."""

    def conclude(self, observation: Seen, active: Active = None) -> Conclusion:
        """What belongs to final observations (slots, …), which are not acted on."""

    def observe_override(self, executed: Executed, slots: Slots = None) -> None:
        """Hear that an operator's actions (slots given, d) were executed in place of its own."""


@dataclass
class EpisodeResult:
    """How an episode went."""

    seed: int
    steps: int = 0  # actions taken
    success: bool = False  # whether the goal was reached
    total_reward: float = 0.0
    seconds: float = 0.0  # its length on the environment's clock [s]
    # Of these, until the goal was reached, and not left again before the end; 0 without success.
    seconds_to_success: float = 0.0
    policy_version: int = 0  # version of the policy at its first step
    # For each step, time from the tick to the sending of the action, and how late the tick after it
    # was reached [s].
    decision_seconds: list[float] = field(default_factory=list)
    lateness_seconds: list[float] = field(default_factory=list)
    intervened_steps: int = 0  # actions that an operator took in place of the controller
    take_overs: int = 0  # how often an operator began to
    # Why the robot could not go on, if it could not. The last action, whose effect nobody saw, then
    # has no row: the observation before it is the final one.
    interrupted: RobotInterrupted | None = None
    ended_by: OperatorEvent | None = None  # what the operator ended it with, if so
    rows: list[Row] = field(default_factory=list)  # where a recorder but no listener was given
    # Why attempts at it before were made again, and how often.
    made_again: Counter[str] = field(default_factory=Counter)
    facts: dict[str, object] = field(default_factory=dict)  # what else is to be recorded of it
    instruction: str = ""  # what the robot was told to do

    def keep(self, writer: EpisodeWriter, source: int) -> None:
        """Add the episode to a dataset; `source` is one of the codes of `data.schema`."""
        writer.append(
            self.rows,
            seed=self.seed,
            instruction=self.instruction,
            success=self.success,
            source=source,
        )


RowListener = Callable[[Row, EpisodeResult], None]


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def training_seed(run_seed: int, stream: int, episode: int) -> int:
    """Seed of an episode of one `SeedStream`, or of an actor's; never an evaluation's."""
    drawn = np.random.SeedSequence([run_seed, stream, episode]).generate_state(1)[0]
    return int(drawn) | _TRAINING_SEED_BIT


class Seeds(Iterator[int]):
    """Seeds of episodes, in their order; an episode that says nothing can be run again."""

    def __init__(self, seeds: Iterable[int]) -> None:
        self._left = deque(seeds)

    def __len__(self) -> int:
        return len(self._left)

    def __next__(self) -> int:
        if not self._left:
            raise StopIteration
        return self._left.popleft()

    def again(self, seed: int) -> None:
        """Let this seed be the next one."""
        self._left.appendleft(seed)

    def end(self) -> None:
        """Let no episode begin any more."""
        self._left.clear()


@dataclass
class _Slot:
    index: int
    session: Session
    observation: Observation = field(default_factory=dict)
    stamp: int = 0
    result: EpisodeResult = field(default_factory=lambda: EpisodeResult(0))
    active: bool = False
    intervened: bool = False


@dataclass
class _Rollout:
    slots: list[_Slot]
    controller: Controller
    recorder: RowBuilder | None
    on_row: RowListener
    on_late_label: Callable[[bool], None]
    stop: Callable[[], bool]
    note: Callable[[str], None]

    def begin(self, slot: _Slot, seed: int) -> None:
        """Begin an episode as soon as the robot can, unless `stop` comes before."""
        session = slot.session
        session.wait_until_free(self.stop, self.note)
        noted, remind_at = "", 0.0
        while True:
            try:
                slot.observation, info = session.reset(seed=seed)
                break
            except RobotInterrupted as problem:
                if self.stop():
                    return
                session.keep_faults()
                now = time.monotonic()
                if str(problem) != noted or now > remind_at:
                    self.note(f"waiting for the robot: {problem}")
                    noted, remind_at = str(problem), now + _REMIND_SECONDS
                time.sleep(_RETRY_SECONDS)
        if noted:
            self.note("the robot is ready, going on")
        if info["late_label"] is not None:
            self.on_late_label(info["late_label"])
        facts, instruction = dict(info.get("facts", {})), session.task.instruction
        slot.result = EpisodeResult(seed, facts=facts, instruction=instruction)
        slot.stamp = int(info["stamp_observation"])
        slot.active, slot.intervened = True, False
        self.controller.reset([slot.index], seeds=[seed], instructions=[instruction])

    def stacked(self) -> Observation:
        if len(self.slots) == 1:  # a robot's pictures are not copied for it
            return {name: value[None] for name, value in self.slots[0].observation.items()}
        filled = next(slot.observation for slot in self.slots if slot.observation)
        return {
            name: np.stack([slot.observation.get(name, filled[name]) for slot in self.slots])
            for name in filled
        }

    def step(self, slot: _Slot, decision: Decision, stopped: bool) -> bool:
        """Step one environment; returns whether its episode is over."""
        result = slot.result
        if result.steps == 0:
            result.policy_version = int(decision.version[slot.index])
        try:
            stepped = slot.session.step(decision.action[slot.index])
        except RobotInterrupted as problem:
            result.interrupted = problem
            return True
        observation, reward, terminated, truncated, info = stepped
        truncated = truncated or (stopped and not terminated)
        if self.recorder is not None:
            outcome = (reward, terminated, truncated)
            seen = (slot.observation, slot.stamp, result.steps)
            self.on_row(self.recorder.step(*seen, decision, slot.index, outcome, info), result)
        before, slot.intervened = slot.intervened, bool(info.get("intervened", False))
        if slot.intervened:
            result.intervened_steps += 1
            result.take_overs += not before
            self.controller.observe_override(info["executed_action"][None], [slot.index])
        slot.observation = observation
        slot.stamp = int(info["stamp_observation"])
        result.steps += 1
        result.total_reward += reward
        result.seconds += slot.session.clock.period
        if bool(info["success"]) != result.success:
            result.success = not result.success
            result.seconds_to_success = result.seconds if result.success else 0.0
        result.decision_seconds.append(info["decision_seconds"])
        result.lateness_seconds.append(info["lateness"])
        return terminated or truncated

    def finish(self, slot: _Slot, decision: Decision) -> None:
        """Make the row of the final observation, and note what else is known of the episode."""
        slot.active, result = False, slot.result
        if self.recorder is not None and result.steps:
            conclusion: Conclusion = decision  # where it was cut: for this very observation
            if result.interrupted is None:
                only = np.zeros(len(self.slots), bool)
                only[slot.index] = True
                conclusion = self.controller.conclude(self.stacked(), only)
            seen = (slot.observation, slot.stamp, result.steps)
            self.on_row(self.recorder.last(*seen, conclusion, slot.index), result)
        slot.session.keep_faults()
        result.ended_by = slot.session.ended_by
        result.facts |= slot.session.facts


def rollout(
    sessions: Sequence[Session],
    controller: Controller,
    seeds: Iterator[int],
    *,
    recorder: RowBuilder | None = None,
    on_row: RowListener = lambda row, result: result.rows.append(row),
    on_late_label: Callable[[bool], None] = lambda success: None,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = _to_stderr,
) -> Iterator[EpisodeResult]:
    """Run episodes, one session a slot, and yield each as it ends.

    An episode begins once nothing halts the robot.

    Args:
        sessions: One per slot.
        controller: Decides for all slots at once.
        seeds: A slot that ends takes the next one; the rollout ends with the last.
        recorder: Makes rows; without one no rows are made.
        on_row: Called with each finished row. Without it a result keeps its rows.
        on_late_label: Called with what the operator says of an episode after its end.
        stop: Asked at each step; when true, running episodes end as truncated.
        note: Called with what a robot waits for that cannot begin an episode yet.
    """
    slots = [_Slot(index, session) for index, session in enumerate(sessions)]
    run = _Rollout(slots, controller, recorder, on_row, on_late_label, stop, note)
    stopped = False
    for slot, seed in zip(slots, seeds, strict=False):
        run.begin(slot, seed)
    while any(slot.active for slot in slots):
        active = np.array([slot.active for slot in slots])
        decision = controller.act(run.stacked(), active)
        stopped = stopped or stop()
        for slot in slots:
            if slot.active and run.step(slot, decision, stopped):
                run.finish(slot, decision)
                yield slot.result
                if not stopped and (following := next(seeds, None)) is not None:
                    run.begin(slot, following)
