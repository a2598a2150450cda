"""Demonstrations that a person drives."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from omegaconf import DictConfig

from robot_rl.data.episodes import EpisodeWriter, StorageFull
from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import SOURCE_DEMONSTRATION, RowSchema
from robot_rl.env.controllers import IdleController
from robot_rl.env.operator import OperatorEvent
from robot_rl.env.robot import RobotInterrupted
from robot_rl.env.rollout import EpisodeResult, rollout
from robot_rl.learning.driven import make_driven_env
from robot_rl.processes.progress import WorkProgress
from robot_rl.processes.signals import deferred_signals
from robot_rl.run import RunDirectory

_POLL_SECONDS = 0.02
_RETRY_SECONDS = 0.5
_SPACE_SECONDS = 5.0


class TeleoperatedSession:
    """Records one demonstration after the other, with the operator's keys between them.

    An episode is written when the next one begins, or at the end: until then `undo` drops it. Where
    the disk is full it waits for space.

    Args:
        config: The configuration; its `teleop` says how the person drives, and its `recording`
            how episodes begin.
        run: The run, whose console can be used beside the device.
        progress: Told how far it is and how each episode went.
    """

    def __init__(self, config: DictConfig, run: RunDirectory, progress: WorkProgress) -> None:
        """Make the environment and connect the device; see the class."""
        self._config, self._progress = config, progress
        self._env, self._operated = make_driven_env(config, run)
        self._controller = IdleController(self._env.schema.action_names)
        self._recorder = RowBuilder(self._env.schema, SOURCE_DEMONSTRATION)
        self._pending: EpisodeResult | None = None
        self._told = ""  # of what it waits for

    @property
    def schema(self) -> RowSchema:
        """Columns of the rows."""
        return self._env.schema

    def record(
        self,
        wanted: int,
        seeds: Iterator[int],
        writer: EpisodeWriter,
        failures: EpisodeWriter | None = None,
    ) -> None:
        """Record until so many demonstrations have succeeded, those of earlier sessions included.

        Args:
            wanted: Successful demonstrations.
            seeds: Of the next episodes.
            writer: Where successful episodes go.
            failures: Where failed ones go, as examples of failure; None keeps none.
        """
        try:
            for number in itertools.count(1):
                self._progress.update(self._successes(writer))
                if self._successes(writer) >= wanted and not self._undone_in_time():
                    break
                self._wait_for_start(number, writer)
                while not self._committed(writer, failures):
                    # Whoever makes room may stand at the robot: it moves when asked to again.
                    time.sleep(_RETRY_SECONDS)
                    self._wait_for_start(number, writer)
                result = self._one_episode(next(seeds))
                judged = self._operated.ended_by is None and result.interrupted is None
                if result.rows and judged:
                    kept = result.success or failures is not None
                    self._pending = result if kept else None
                self._tell(number, result)
        finally:
            while not self._committed(writer, failures):  # another Ctrl-C gives it up
                time.sleep(_SPACE_SECONDS)

    def close(self) -> None:
        """Release robot and device."""
        self._env.close()

    def _successes(self, writer: EpisodeWriter) -> int:
        return len(writer) + int(self._pending is not None and self._pending.success)

    def _one_episode(self, seed: int) -> EpisodeResult:
        seeds, note = iter([seed]), self._progress.note
        episodes = rollout([self._env], self._controller, seeds, recorder=self._recorder, note=note)
        result = next(episodes)
        self._progress.episode(result.success)
        return result

    def _tell(self, number: int, result: EpisodeResult) -> None:
        outcome = "success" if result.success else "failure"
        if self._operated.ended_by is not None:
            outcome = str(self._operated.ended_by)
        elif result.interrupted is not None:
            outcome = f"cut ({result.interrupted})"
        kept = "kept" if self._pending is result else "not kept"
        self._progress.note(
            f"episode {number}: {outcome} after {result.seconds:.1f} s, {result.steps} steps,"
            f" {result.intervened_steps} of them driven; {kept}"
        )

    def _wait_for_start(self, number: int, writer: EpisodeWriter) -> None:
        """Count down, then wait until the operator says `start` or moves the device."""
        self._told = ""
        begins = time.monotonic() + float(self._config.recording.countdown_s)
        while True:
            try:
                said = self._operated.hear()
            except RobotInterrupted as problem:
                self._tell_waiting(str(problem))
                time.sleep(_RETRY_SECONDS)
                continue
            if OperatorEvent.UNDO in said.events:
                self._undo()
                self._progress.update(self._successes(writer))
            self._env.look()
            counting, halted = time.monotonic() < begins, self._operated.waiting()
            asked = OperatorEvent.START in said.events or said.moving
            if halted or not (counting or asked):
                self._tell_waiting(halted or f"episode {number}: say start, or move the device")
            if not (counting or halted) and (asked or not self._config.recording.wait_for_start):
                return
            time.sleep(_POLL_SECONDS)

    def _tell_waiting(self, reason: str) -> None:
        """Say what an episode waits for, once."""
        if reason != self._told:
            self._told = reason
            self._progress.note(reason)
            self._env.note_waiting(reason)

    def _undone_in_time(self) -> bool:
        """Give the operator some time to undo the last of the wanted demonstrations."""
        seconds = float(self._config.recording.undo_s)
        if self._pending is None or seconds <= 0.0:
            return False
        self._progress.note(f"that was the last one; it is kept in {seconds:g} s, unless you undo")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                undone = OperatorEvent.UNDO in self._operated.hear().events
            except RobotInterrupted as problem:
                self._progress.note(f"nothing can be undone: {problem}")
                return False
            if undone:
                self._undo()
                return True
            time.sleep(_POLL_SECONDS)
        return False

    def _undo(self) -> None:
        gone, self._pending = self._pending, None
        self._progress.note(
            "there is nothing to undo: only the last episode can be"
            if gone is None
            else f"undone: the last episode ({gone.steps} steps) is not kept"
        )

    def _committed(self, writer: EpisodeWriter, failures: EpisodeWriter | None) -> bool:
        """Write the last episode, which can then no longer be undone, unless the disk is full."""
        result = self._pending
        if result is None:
            return True
        chosen = writer if result.success else failures
        assert chosen is not None, "what is not kept is not pending"
        try:
            with deferred_signals():  # or it would be written again
                result.keep(chosen, SOURCE_DEMONSTRATION)
                self._pending = None
        except StorageFull as problem:
            self._progress.note(f"the last episode waits for space: {problem}")
            return False
        return True
