"""`robot-rl run`: run a trained policy repeatedly, without a learner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from omegaconf import DictConfig

from policies.behaviour import Behaviour
from policies.compute import ready
from policies.runner import PolicyRunner
from robot_rl.commands.preparation import check_robot, robot_nodes, try_environment
from robot_rl.config import section
from robot_rl.config.sections import DeploymentSection
from robot_rl.console.feed import ConsoleFeed
from robot_rl.data.policy_columns import check_fit
from robot_rl.env.factory import make_session
from robot_rl.env.robot import work_report_of
from robot_rl.env.rollout import SeedStream, rollout, training_seed
from robot_rl.env.session import EpisodeResult
from robot_rl.errors import in_shell
from robot_rl.evaluation.evaluator import TAKEN_BACK, without_training_aids
from robot_rl.evaluation.ledger import open_policy
from robot_rl.processes.signals import StopEvent, stop_event
from robot_rl.run import ATTEMPTS, RunDirectory


@dataclass
class Counters:
    """Counts since the command started."""

    attempts: int = 0  # episodes that were not cut by the robot
    successes: int = 0  # attempts that succeeded without a person's help
    interventions: int = 0  # number of times a person took over
    faults: int = 0  # number of times the robot could not continue; see `FaultLog`
    failed_in_a_row: int = 0  # consecutive attempts that failed or were cut
    mean_seconds: float = 0.0  # mean time to success, on the environment's clock [s]

    def take(self, result: EpisodeResult) -> None:
        """Count an attempt; one cut by a fault counts only towards `failed_in_a_row`."""
        self.failed_in_a_row = 0 if result.success else self.failed_in_a_row + 1
        if result.interrupted is not None:
            return
        self.attempts += 1
        self.interventions += result.take_overs
        self.successes += result.success
        if result.success:
            left = result.seconds_to_success - self.mean_seconds
            self.mean_seconds += left / self.successes

    def __str__(self) -> str:
        rate = 100 * self.successes / max(self.attempts, 1)
        mean = f", in {self.mean_seconds:.1f} s each" if self.successes else ""
        return (
            f"{self.successes} of {self.attempts} attempts succeeded ({rate:.1f} %){mean};"
            f" faults: {self.faults}, interventions: {self.interventions}"
        )


class Deployment:
    """A robot with the operator, reset and reward of its training, and no learner.

    A person acts by device, console or ROS service as in training. An episode that they `pause` or
    `discard` is not an attempt; one in which they drive is not a success of the policy. After
    `deployment.most_failures` consecutive failures the robot does not move until their `start`.
    """

    def __init__(self, config: DictConfig, run: RunDirectory, stop: StopEvent) -> None:
        self.counters = Counters()
        self._config, self._run, self._stop = config, run, stop
        self._session = make_session(without_training_aids(config), run, stopped=stop.is_set)
        ConsoleFeed(self._session, run)
        self._work_report = work_report_of(self._session.robot)

    def close(self) -> None:
        """Hold the robot and release it."""
        self._session.close()

    def work(self, behaviour: Behaviour) -> None:
        """Run attempts until there are `deployment.episodes`, or `stop` is set.

        `PolicyError` if the policy was made for another task, rate or observation.
        """
        check_fit(behaviour, self._session.schema)
        most = int(self._config.deployment.most_failures)
        for result in rollout(
            [self._session],
            PolicyRunner(ready(behaviour.exploring("mean"), self._config.device)),
            self._session.when_free(self._seeds(), self._note, self._stop.is_set),
            on_late_label=lambda success: self._note("a label came too late to count"),
            stop=self._stop.is_set,
            note=self._note,
        ):
            if self._stop.is_set() or result.ended_by in TAKEN_BACK:
                continue
            result.success = result.success and not result.intervened_steps
            self.counters.take(result)
            self._keep(result)
            failed = self.counters.failed_in_a_row
            if failed and failed % most == 0:
                self._session.operator.wait_for_start(f"{failed} attempts in a row have failed")

    def _seeds(self) -> Iterator[int]:
        """Yield a seed for each attempt, up to `deployment.episodes` attempts."""
        count, number = int(self._config.deployment.episodes), len(self._run.read_jsonl(ATTEMPTS))
        while not count or self.counters.attempts < count:
            self._report()
            yield training_seed(int(self._config.seed), SeedStream.DEPLOYMENT, number)
            number += 1

    def _note(self, text: str) -> None:
        print(f"run: {text}", flush=True)
        self._report()

    def _keep(self, result: EpisodeResult) -> None:
        """Print and record the outcome of an attempt."""
        self.counters.faults = self._session.faults
        record = {
            "time": datetime.now().astimezone().isoformat(timespec="milliseconds"),
            "success": result.success,
            "seconds": result.seconds,
            "interrupted": None if result.interrupted is None else str(result.interrupted),
            "ended_by": result.ended_by,
            "intervened_steps": result.intervened_steps,
            "policy_version": result.policy_version,
            **result.facts,
            "counters": asdict(self.counters),
        }
        how = "success" if result.success else "failure"
        how = how if result.interrupted is None else f"cut ({result.interrupted})"
        print(f"{how} after {result.seconds:.1f} s; {self.counters}", flush=True)
        self._run.append_jsonl(ATTEMPTS, record)
        if self._work_report is not None and result.interrupted is None:
            self._work_report.tell_outcome(result.success)

    def _report(self) -> None:
        """Publish the counters, and what the robot is waiting for, on ROS."""
        self.counters.faults = self._session.faults
        if self._work_report is not None:
            self._work_report.tell_counters(asdict(self.counters), self._session.operator.waiting())


def run(config: DictConfig, overrides: Sequence[str], paths: Sequence[str]) -> None:
    """Run the policy of a run, or the one at the path, on the robot; see `Deployment`."""
    section(config, "deployment", DeploymentSection)
    directory = RunDirectory(Path(config.run))
    (path,) = paths or [config.run]
    behaviour, steps = open_policy(path, config.evaluation.policy, config.runs_directory)
    if config.clock == "realtime":
        check_robot(config)
    try_environment(config)
    with (
        robot_nodes(config, directory.path / "logs"),
        directory.claim("actor-1"),
        stop_event() as stop,
    ):
        with closing(Deployment(config, directory, stop)) as deployed:
            name = f"{behaviour.policy.kind} policy after {steps:,} steps"
            console = in_shell("robot-rl", "console", directory.path)
            print(f"{name}; {console} shows it, Ctrl-C ends it", flush=True)
            deployed.work(behaviour)
        print(f"{config.task.name}: {deployed.counters}", flush=True)
        if stop.is_set():
            raise KeyboardInterrupt
