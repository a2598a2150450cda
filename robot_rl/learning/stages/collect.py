"""Stage `Collect`: demonstrations by the task's scripted expert or by a person."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

from robot_rl.config import ConfigError, Settings
from robot_rl.data.episodes import DatasetError, EpisodeDataset, EpisodeWriter, StorageFull
from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import SOURCE_DEMONSTRATION, Array
from robot_rl.env.controllers import ExpertController, IdleController
from robot_rl.env.factory import check_expert, make_expert, make_source
from robot_rl.env.operator import OperatorEvent
from robot_rl.env.robot import RobotInterrupted, joint_columns
from robot_rl.env.rollout import SeedStream, rollout, training_seed
from robot_rl.env.session import EpisodeResult
from robot_rl.env.task import HUMAN_VERSION
from robot_rl.errors import RobotRLError
from robot_rl.evaluation.evaluator import without_training_aids
from robot_rl.learning.recipe import Stage
from robot_rl.learning.workbench import Workbench, make_watched_session
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.processes.signals import deferred_signals
from robot_rl.run import CLONED, DEMONSTRATIONS, RunDirectory

_MOST_FAILURES = 200
_MOST_ATTEMPTS = 100_000


class Collect(Stage):
    """Records demonstrations until the configured number has succeeded.

    The task's scripted expert drives, and its failures are discarded. With a `teleop` device a
    person drives, whose failures can be stored separately. The configured reward decides success.

    An interrupted recording resumes where it stopped. Episodes are numbered, and their seeds follow
    from the run's seed and their number.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        recorded = settings.demonstrated and settings.dataset is None
        self.makes = (DEMONSTRATIONS,) if recorded else ()

    @property
    def needs(self) -> Sequence[str]:
        """Return no artifacts. Raise if there is no expert or operator, or no judge of success."""
        environment, choices = self.settings.environment, self.settings.choices
        if environment.teleop.device is not None:
            return ()
        check_expert(environment)
        # A scripted expert runs unattended, so no person can judge success.
        if make_source(environment).version == HUMAN_VERSION:
            raise ConfigError(
                "nobody says whether the scripted expert has succeeded",
                got=f"reward={choices['reward']} and teleop={choices['teleop']}",
                hint="drive the demonstrations with teleop=DEVICE; or record them with robot-rl"
                " collect reward=task, and name them with dataset=RUN/demonstrations.zarr",
            )
        return ()

    def done(self, run: RunDirectory, *, recorded: bool) -> bool:
        """Return whether there are enough demonstrations, or a policy was cloned from them."""
        path, count = run.demonstrations, self.settings.demonstrations
        return path.exists() and (run.has_folder(CLONED) or len(EpisodeDataset(path)) >= count)

    def run(self, bench: Workbench) -> None:
        """Record the missing demonstrations. Earlier ones are always kept."""
        settings, run = self.settings, bench.run
        with WorkProgress(settings.demonstrations, "demonstrations") as progress:
            progress.phase("collecting")
            if settings.environment.teleop.device is None:
                _collect(settings, run, progress)
                return
            with closing(TeleoperatedSession(settings, run, progress)) as session:
                seeds = attempts_after(EpisodeDataset(run.demonstrations).seeds, settings.seed)[1]
                session.record(settings.demonstrations, seeds)


def _collect(settings: Settings, run: RunDirectory, progress: WorkProgress) -> None:
    """Let the task's scripted expert demonstrate."""
    environment, choices = settings.environment, settings.choices
    session = make_watched_session(without_training_aids(environment), run, resets=False)
    robot = session.robot
    if not robot.simulated and getattr(robot, "simulated_task", None) is None:
        session.close()
        raise RobotRLError(
            "a scripted expert drives no robot that is not simulated",
            got=f"robot={choices['robot']} without a device of teleop",
            hint="demonstrate with teleop=keyboard, spacemouse or another of configs/teleop",
        )
    recorder = RowBuilder(session.schema, SOURCE_DEMONSTRATION)
    controller = ExpertController(make_expert(environment, session))
    count, facts = settings.demonstrations, {"robot": choices["robot"]}
    with closing(session), EpisodeWriter(run.demonstrations, session.schema, facts) as writer:
        first, seeds = attempts_after(EpisodeDataset(run.demonstrations).seeds, settings.seed)
        attempts, failures = first, 0
        progress.update(len(writer))
        note = progress.note
        free = session.when_free(seeds, note)
        while len(writer) < count:
            result = next(rollout([session], controller, free, recorder=recorder, note=note))
            attempts += 1
            progress.episode(result.success)
            failures = 0 if result.success else failures + 1
            if failures == _MOST_FAILURES:
                raise RobotRLError(
                    f"the scripted expert has failed {failures} times in a row",
                    got=f"{len(writer)} demonstrations in {attempts} attempts",
                    hint="make the task or the expert's imperfections easier, or look at what"
                    f" has judged it: reward={choices['reward']}",
                )
            if result.success:
                result.keep(writer, SOURCE_DEMONSTRATION)
                progress.update(len(writer))
    if attempts > first:
        progress.note(
            f"collected {count} demonstrations of {environment.task.name} in {attempts} attempts"
            f" ({100 * count / attempts:.0f} % succeeded)"
        )


def attempts_after(
    recorded: Array, run_seed: int, stream: SeedStream = SeedStream.DEMONSTRATIONS
) -> tuple[int, Iterator[int]]:
    """Return the number of the attempt after the last recorded seed, and the seeds from there on.

    Raise `DatasetError` if that seed does not belong to this run.
    """

    def seeds(first: int) -> Iterator[int]:
        return (training_seed(run_seed, stream, n) for n in itertools.count(first))

    if not len(recorded):
        return 0, seeds(0)
    for number, seed in enumerate(itertools.islice(seeds(0), _MOST_ATTEMPTS), 1):
        if seed == recorded[-1]:
            return number, seeds(number)
    raise DatasetError(
        "the last episode was not recorded with this run's seed",
        got=f"seed {recorded[-1]} of the episode",
        expected=f"one that follows from seed={run_seed}",
        hint="use them as they are, in a new run, with dataset=PATH",
    )


_POLL_SECONDS = 0.02
_RETRY_SECONDS = 0.5
_SPACE_SECONDS = 5.0


class TeleoperatedSession:
    """Records demonstrations one after another, with operator keys in between.

    An episode is written when the next one starts, or at the end. Until then `undo` discards it. If
    the disk is full, recording waits for space. The settings' `teleop` specifies how the person
    drives. Their `recording` specifies how episodes start and whether failures are stored as
    failure examples. The run's console works alongside the device.
    """

    def __init__(self, settings: Settings, run: RunDirectory, progress: WorkProgress) -> None:
        self._options, self._progress = settings.recording, progress
        timed = settings.environment.copy()
        timed.clock = "realtime"
        self._session = make_watched_session(timed, run, resets=False)
        schema = self._session.schema
        self._controller = IdleController(schema.action_names)
        self._recorder = RowBuilder(schema, SOURCE_DEMONSTRATION)
        facts = {name: settings.choices[name] for name in ("robot", "teleop")}
        self._failures: EpisodeWriter | None = None
        with ExitStack() as opened:
            opened.callback(self._session.close)
            self._writer = opened.enter_context(EpisodeWriter(run.demonstrations, schema, facts))
            if self._options.keep_failures:
                self._failures = opened.enter_context(EpisodeWriter(run.failures, schema, facts))
            self._opened = opened.pop_all()
        self._pending: EpisodeResult | None = None
        self._waiting_for = ""  # last message shown

    def record(self, count: int, seeds: Iterator[int]) -> None:
        """Record until `count` demonstrations have succeeded, including those of earlier sessions.

        `seeds` yields the seeds of the next episodes.
        """
        try:
            for number in itertools.count(1):
                self._progress.update(self._successes)
                if self._successes >= count and not self._undone_in_time():
                    break
                self.wait_for_start(number)
                while not self._committed():
                    # The person freeing disk space may be at the robot, so wait for `start` again.
                    time.sleep(_RETRY_SECONDS)
                    self.wait_for_start(number)
                acted = rollout(
                    [self._session],
                    self._controller,
                    iter([next(seeds)]),
                    recorder=self._recorder,
                    note=self._progress.note,
                )
                result = next(acted)
                self._progress.episode(result.success)
                judged = result.ended_by is None and result.interrupted is None
                if result.rows and judged:
                    kept = result.success or self._failures is not None
                    self._pending = result if kept else None
                self._tell(number, result)
        finally:
            while not self._committed():  # another Ctrl-C discards it
                time.sleep(_SPACE_SECONDS)

    def close(self) -> None:
        """Close the robot, device and files."""
        self._opened.close()

    @property
    def _successes(self) -> int:
        return len(self._writer) + int(self._pending is not None and self._pending.success)

    def _tell(self, number: int, result: EpisodeResult) -> None:
        outcome = "success" if result.success else "failure"
        if result.ended_by is not None:
            outcome = str(result.ended_by)
        elif result.interrupted is not None:
            outcome = f"cut ({result.interrupted})"
        kept = "kept" if self._pending is result else "not kept"
        self._progress.note(
            f"episode {number}: {outcome} after {result.seconds:.1f} s, {result.steps} steps,"
            f" {result.intervened_steps} of them driven; {kept}"
        )

    def wait_for_start(self, number: int) -> None:
        """Count down, then wait until the operator gives `start` or moves the device."""
        self._waiting_for = ""
        begins = time.monotonic() + self._options.countdown_s
        while True:
            try:
                said = self._session.operator.hear()
            except RobotInterrupted as problem:
                self._tell_waiting(str(problem))
                time.sleep(_RETRY_SECONDS)
                continue
            if OperatorEvent.UNDO in said.events:
                self._undo()
            self._session.look()
            counting, halted = time.monotonic() < begins, self._session.operator.waiting()
            asked = OperatorEvent.START in said.events or said.moving
            if halted or not (counting or asked):
                # A person moving a leader arm may only be bringing it near the robot's pose.
                moves = (
                    ""
                    if joint_columns(self._session.schema.action_names)
                    else ", or move the device"
                )
                self._tell_waiting(halted or f"episode {number}: say start{moves}")
            if not (counting or halted) and (asked or not self._options.wait_for_start):
                return
            time.sleep(_POLL_SECONDS)

    def _tell_waiting(self, reason: str) -> None:
        """Show once what the episode is waiting for."""
        if reason != self._waiting_for:
            self._waiting_for = reason
            self._session.say_waiting(reason, self._progress.note)

    def _undone_in_time(self) -> bool:
        """Give the operator some time to undo the last demonstration."""
        seconds = self._options.undo_s
        if self._pending is None or seconds <= 0.0:
            return False
        self._progress.note(f"that was the last one; it is kept in {seconds:g} s, unless you undo")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                undone = OperatorEvent.UNDO in self._session.operator.hear().events
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
        self._progress.update(self._successes)

    def _committed(self) -> bool:
        """Write the last episode, which can then no longer be undone. False if the disk is full."""
        result = self._pending
        if result is None:
            return True
        chosen = self._writer if result.success else self._failures
        assert chosen is not None, "an episode that is not kept is not pending"
        try:
            with deferred_signals():  # or it would be written twice
                result.keep(chosen, SOURCE_DEMONSTRATION)
                self._pending = None
        except StorageFull as problem:
            self._progress.note(f"the last episode waits for space: {problem}")
            return False
        return True
