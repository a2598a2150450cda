"""The episode loop shared by collecting, acting and evaluating."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum, unique
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from robot_rl.data.rows import Active, Instructions, RowBuilder, Seen, Slots
from robot_rl.data.schema import Observation, Row
from robot_rl.env.robot import RobotInterrupted
from robot_rl.env.session import EpisodeResult, Session

if TYPE_CHECKING:
    from policies.runner import Conclusion, Decision

# The top bit keeps training seeds distinct from evaluation seeds.
_TRAINING_SEED_BIT = 1 << 31
# Retry interval while the robot cannot start an episode, and interval between repeated notes.
_RETRY_SECONDS, _REMIND_SECONDS = 0.2, 10.0


@unique
class SeedStream(IntEnum):
    """Purpose of episodes; each has its own seeds."""

    DEMONSTRATIONS = 0
    ACTING = 1  # first session of the first actor; others count up from here
    GATHERING = (1 << 31) - 7
    DEPLOYMENT = (1 << 31) - 6
    LABELLED_EXAMPLES = (1 << 31) - 5
    CORRECTIONS = (1 << 31) - 4
    SUCCESS_EXAMPLES = (1 << 31) - 3
    FAILURE_EXAMPLES = (1 << 31) - 2
    EXPLORATION = (1 << 31) - 1


class Controller(Protocol):
    """A policy runner or a scripted expert. Slots are parallel episodes."""

    def reset(
        self, slots: Slots = None, *, seeds: Sequence[int], instructions: Instructions = None
    ) -> None:
        """Start episodes in `slots` with one seed and one instruction each."""

    def act(self, observation: Seen, active: Active = None) -> Decision:
        """Decide one step from observations (slots, …); inactive slots are not read."""

    def conclude(self, observation: Seen, active: Active = None) -> Conclusion:
        """Return proposals for final observations (slots, …); they are not executed."""

    def observe_override(self, slots: Slots = None) -> None:
        """Notify that an operator's actions were executed in `slots` instead of its own."""


RowListener = Callable[[Row, EpisodeResult], None]


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def training_seed(run_seed: int, stream: int, episode: int) -> int:
    """Seed of an episode in a `SeedStream` or an actor's stream; never an evaluation seed."""
    drawn = np.random.SeedSequence([run_seed, stream, episode]).generate_state(1)[0]
    return int(drawn) | _TRAINING_SEED_BIT


class Seeds(Iterator[int]):
    """Episode seeds in order; an episode can be repeated."""

    def __init__(self, seeds: Iterable[int]) -> None:
        self._left = deque(seeds)

    def __len__(self) -> int:
        return len(self._left)

    def __next__(self) -> int:
        if not self._left:
            raise StopIteration
        return self._left.popleft()

    def again(self, seed: int) -> None:
        """Make this seed the next one."""
        self._left.appendleft(seed)

    def end(self) -> None:
        """Drop all remaining seeds."""
        self._left.clear()


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
    """Run episodes, one session per slot, and yield each as it ends.

    Args:
        sessions: One per slot.
        controller: Decides for all slots at once.
        seeds: A finished slot takes the next seed; the rollout ends with the last.
        recorder: Makes rows; None for no rows.
        on_row: Called with each finished row. By default the result stores its rows.
        on_late_label: Called with the operator's label of an episode that has already ended.
        stop: Checked at each step; if true, running episodes end as truncated.
        note: Called with the reason why a robot cannot start an episode yet.
    """
    active, stopped = np.zeros(len(sessions), bool), False

    def begin(slot: int, seed: int) -> None:
        info = _begun(sessions[slot], seed, stop, note)
        if info is None:
            return
        if info["late_label"] is not None:
            on_late_label(info["late_label"])
        words = [sessions[slot].result.instruction]
        controller.reset([slot], seeds=[seed], instructions=words)
        active[slot] = True

    for slot, seed in zip(range(len(sessions)), seeds, strict=False):
        begin(slot, seed)
    while active.any():
        decision = controller.act(_stacked(sessions), active.copy())
        stopped = stopped or stop()
        for slot in np.flatnonzero(active).tolist():
            session, result = sessions[slot], sessions[slot].result
            seen = (session.observation, session.stamp, result.steps)
            if result.steps == 0:
                result.policy_version = int(decision.version[slot])
            try:
                _, reward, terminated, truncated, info = session.step(decision.action[slot])
            except RobotInterrupted as problem:
                result.interrupted = problem
            else:
                truncated = truncated or (stopped and not terminated)
                if recorder is not None:
                    outcome = (reward, terminated, truncated)
                    on_row(recorder.step(*seen, decision, slot, outcome, info), result)
                if info["intervened"]:
                    controller.observe_override([slot])
                if not (terminated or truncated):
                    continue
            active[slot] = False
            result.ended_by = session.operator.ended_by
            if recorder is not None and result.steps:
                conclusion: Conclusion = decision  # if interrupted: made for this observation
                if result.interrupted is None:
                    only = np.zeros(len(sessions), bool)
                    only[slot] = True
                    conclusion = controller.conclude(_stacked(sessions), only)
                seen = (session.observation, session.stamp, result.steps)
                on_row(recorder.last(*seen, conclusion, slot), result)
            session.keep_faults()
            yield result
            if not stopped and (following := next(seeds, None)) is not None:
                begin(slot, following)


def _begun(
    session: Session, seed: int, stop: Callable[[], bool], note: Callable[[str], None]
) -> dict[str, Any] | None:
    """Start an episode as soon as the robot can; return the info, or None after `stop`."""
    noted, remind_at = "", 0.0
    while True:
        try:
            _, info = session.reset(seed=seed)
        except RobotInterrupted as problem:
            if stop():
                return None
            session.keep_faults()
            now = time.monotonic()
            if str(problem) != noted or now > remind_at:
                note(f"waiting for the robot: {problem}")
                noted, remind_at = str(problem), now + _REMIND_SECONDS
            time.sleep(_RETRY_SECONDS)
        else:
            if noted:
                note("the robot is ready, going on")
            return info


def _stacked(sessions: Sequence[Session]) -> Observation:
    """The observations of all slots; a slot without an episode repeats another's."""
    if len(sessions) == 1:  # avoid copying a robot's images
        return {name: value[None] for name, value in sessions[0].observation.items()}
    filled = next(session.observation for session in sessions if session.observation)
    return {
        name: np.stack([session.observation.get(name, filled[name]) for session in sessions])
        for name in filled
    }
