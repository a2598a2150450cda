"""Success rates over seeded evaluation episodes, run in parallel."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from statistics import fmean
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from policies.behaviour import Behaviour
from policies.compute import ready
from policies.runner import PolicyRunner
from robot_rl.config import composed, flatten, on_stepped_clock, section
from robot_rl.config.sections import EvaluationSection
from robot_rl.console.feed import ConsoleFeed, jpegs
from robot_rl.data.policy_columns import check_fit
from robot_rl.env.factory import has_domain, make_env, make_session
from robot_rl.env.gym import NO_SUCCESS
from robot_rl.env.operator import OperatorEvent
from robot_rl.env.rollout import Seeds, rollout
from robot_rl.env.session import EpisodeResult, Session
from robot_rl.errors import RobotRLError
from robot_rl.evaluation.statistics import EvaluationResult, Labels
from robot_rl.processes.signals import StopEvent, Stopped
from robot_rl.rewards.source import TaskReward
from robot_rl.run import SCENES, RunDirectory, RunError

SeedSet = Literal["periodic", "final"]
# The evaluation fails after this many cuts of one episode.
_CUT, _MOST_CUTS = "cut", 5
# Events about the attempt, not about the policy.
TAKEN_BACK = (OperatorEvent.PAUSE, OperatorEvent.DISCARD)


class EvaluationError(RobotRLError):
    """An evaluation that cannot produce a result."""


class Evaluator:
    """Evaluates policies and keeps the environments open until closed.

    A simulation with a stepped clock runs many episodes in parallel. A robot with only the wall
    clock is attended by people and uses the reset of its training. The task's own detector decides
    success; without one, the configured reward source does. The operator may send `success` and
    `failure` as in training; a label after the end of an episode is recorded but does not count. An
    episode in which the operator drives is not a success. An episode that the operator pauses or
    discards is repeated, and `note` is called with the reason.

    If a person resets the scene, the first attempt at a seed defines its scene: the first images of
    all cameras are saved as `scenes/SEED/CAMERA.jpg` in the run, and `note` points to them before
    every further attempt. `ConfigError` if a number in `evaluation` is out of range.
    """

    def __init__(self, config: DictConfig, run: RunDirectory, note: Callable[[str], None]) -> None:
        section(config, "evaluation", EvaluationSection)
        self._config, self._run, self._note = config, run, note
        self._last = EpisodeResult(0)
        self._console: ConsoleFeed | None = None
        stepped = on_stepped_clock(config)
        if stepped.clock == "realtime":
            alone = without_training_aids(config)
            form = alone.task[alone.robot.get("task", "environment")]
            detector: dict[str, Any] = {"source": TaskReward(), "cameras": []}
            judged = detector if form.get("reports_success", True) else {}
            self._sessions = [make_session(alone, run, **judged)]
            self._console = ConsoleFeed(self._sessions[0], run)
            return
        episodes = max(config.evaluation.episodes, config.evaluation.final_episodes)
        self._sessions = []
        for _ in range(min(int(config.evaluation.slots), int(episodes))):
            self._sessions.append(Session(make_env(stepped)))

    def close(self) -> None:
        """Close the environments; only one process may own a robot."""
        with ExitStack() as parts:
            for session in self._sessions:
                parts.callback(session.close)

    def evaluate(
        self,
        behaviour: Behaviour,
        environment_steps: int,
        seed_set: SeedSet,
        stop: StopEvent | None = None,
        most_failures: int | None = None,
    ) -> EvaluationResult:
        """Run the behaviour's best guess on a set of seeds.

        Args:
            behaviour: The policy, run without exploration.
            environment_steps: Training steps behind the policy; 0 for the cloned policy.
            seed_set: Which set of seeds.
            stop: When set, the evaluation is aborted.
            most_failures: Allowed failures; the next one, in seed order, ends the evaluation.
                None: run all seeds.

        Raises:
            Stopped: `stop` was set.
            PolicyError: The policy was made for another task, rate or observation.
            EvaluationError: The robot cuts one episode repeatedly.
        """
        settings = self._config.evaluation
        final = seed_set == "final"
        first = first_scene(self._config, final=final)
        count = int(settings.final_episodes if final else settings.episodes)
        most = count if most_failures is None else most_failures
        started = time.monotonic()
        seeds = Seeds(range(first, first + count))
        results: list[EpisodeResult] = []
        if self._console is not None:
            session = self._sessions[0]
            seconds = session.task.time_limit_steps * session.clock.period
            self._note(f"evaluation: {count} episodes of up to {seconds:g} s, one after the other")
        for result in self.episodes(behaviour, seeds, stop):
            results.append(result)
            if self._console is not None:
                how = "success" if result.success else "failure"
                self._note(f"evaluation: {len(results)} of {count}: {how}, {result.seconds:.1f} s")
            if sum(not r.success for r in results) > most:
                seeds.end()
        results.sort(key=lambda result: result.seed)
        # Ignore later scenes that have already ended: the seed order decides.
        failed = [number for number, r in enumerate(results, 1) if not r.success]
        results = results[: failed[most] if len(failed) > most else None]
        return summarised(
            results,
            behaviour,
            seed_set=seed_set,
            first_seed=first,
            environment_steps=environment_steps,
            wall_seconds=time.monotonic() - started,
            mean_return=fmean(result.total_reward for result in results)
            if self._config.robot.get("success") == NO_SUCCESS
            else None,
            **conditions(self._config),
        )

    def episodes(
        self, behaviour: Behaviour, seeds: Seeds, stop: StopEvent | None = None
    ) -> Iterator[EpisodeResult]:
        """Run the behaviour's best guess, `slots` episodes in parallel.

        Yields each episode as it ends, except those that are repeated. An episode in which a person
        drove is not a success. Raises the errors of `evaluate`.
        """
        self.check_fit(behaviour)
        acting = ready(behaviour.exploring("mean"), self._config.device)
        sessions = self._sessions[: len(seeds)]
        runner = PolicyRunner(acting, slots=len(sessions))
        given_up = StopEvent() if stop is None else stop
        made_again: dict[int, Counter[str]] = defaultdict(Counter)
        announced = self._announced(seeds)
        for result in rollout(
            sessions, runner, announced, on_late_label=self._hear_late, stop=given_up.is_set
        ):
            self._last = result
            self._keep_pictures(result.seed)
            again = made_again[result.seed]
            if result.interrupted is None and result.ended_by not in TAKEN_BACK:
                result.success = result.success and not result.intervened_steps
                result.made_again = again
                yield result
                continue
            reason = result.interrupted or f"the operator said {result.ended_by}"
            self._note(f"evaluation: episode {result.seed} is made again: {reason}")
            seeds.again(result.seed)
            again[_CUT if result.interrupted else str(result.ended_by)] += 1
            if result.interrupted and again[_CUT] >= _MOST_CUTS:
                raise EvaluationError(
                    f"the robot does not get through episode {result.seed}",
                    got=f"cut {again[_CUT]} times: {reason}",
                    hint="find what cuts it, then evaluate again",
                )
        if given_up.is_set():
            raise Stopped

    def check_fit(self, behaviour: Behaviour) -> None:
        """Raise `PolicyError` if the policy was made for another task, rate or observation."""
        check_fit(behaviour, self._sessions[0].schema)

    def _announced(self, seeds: Iterator[int]) -> Iterator[int]:
        """Yield each seed; if its scene has saved images, first ask the person to restore it."""
        for seed in seeds:
            name = f"{SCENES}/{seed}"
            by_person = self._sessions[0].scene_put_back_by_person
            if self._console and by_person and self._run.has_folder(name):
                place = self._run.path / name
                self._note(f"evaluation: episode {seed}: put the scene back as in {place}")
                self._console.wanted_scene = seed
            yield seed

    def _keep_pictures(self, seed: int) -> None:
        """Between episodes: save the first images of a scene that a person resets."""
        session, name = self._sessions[0], f"{SCENES}/{seed}"
        if not session.scene_put_back_by_person or self._run.has_folder(name):
            return
        try:
            if pictures := jpegs(session.first_observation):
                with self._run.atomic_folder(name) as folder:
                    for camera, jpeg in pictures.items():
                        (folder / f"{camera}.jpg").write_bytes(jpeg)
        except RunError as problem:  # not worth losing the evaluation so far
            self._note(f"evaluation: no pictures of the scene of episode {seed}: {problem}")

    def _hear_late(self, success: bool) -> None:
        self._last.facts["operator_success"] = success
        self._note(
            f"evaluation: the label {'success' if success else 'failure'} came after the end of"
            " its episode and does not count"
        )

    @property
    def slots(self) -> int:
        """Number of parallel episodes."""
        return len(self._sessions)


def summarised(
    episodes: Sequence[EpisodeResult], behaviour: Behaviour, **facts: Any
) -> EvaluationResult:
    """Summarise episodes in seed order; see `EvaluationResult` for the facts."""
    # For a `FallbackPolicy`, use the policy that plans. No isinstance check: it would load torch.
    acting = getattr(behaviour.policy, "acting", behaviour.policy)
    return EvaluationResult.of_episodes(
        [episode.success for episode in episodes],
        [episode.seconds_to_success for episode in episodes],
        policy=acting.kind,
        gradient_updates=behaviour.version,
        held_back=behaviour.held_back,
        made_again=dict(sum((episode.made_again for episode in episodes), Counter())),
        operated=sum(episode.intervened_steps > 0 for episode in episodes),
        labels=Labels.of([episode.facts for episode in episodes]),
        **facts,
    )


def first_scene(config: DictConfig, *, final: bool) -> int:
    """Seed of the first scene of a periodic or final evaluation; the others count up from it."""
    given = config.evaluation.final_seed if final else config.evaluation.seed
    if given is not None:
        return int(given)
    # Below 2^31, where training seeds start.
    return 1_000_000 * (int(config.seed) % 2_000) + (20_000 if final else 10_000)


def name_of_domain(config: DictConfig) -> str | None:
    """Name of the configured domain, such as `lab light=[1.0, 1.0]`; None if the robot has none."""
    if not has_domain(config):
        return None
    choice = config.choices.domain
    own = composed([f"domain={choice}"]).domain
    changed = [f"{key}={value}" for key, value in config.domain.items() if value != own.get(key)]
    return " ".join([choice, *changed])


def conditions(config: DictConfig) -> dict[str, Any]:
    """What determines a scene besides its seed: `domain`, `task` and `scenes` of a result."""
    form = config.robot.get("task", "environment")
    scenes = {"robot": config.choices.robot, **_settings(config, f"task.{form}")}
    scenes |= _settings(config, "robot.arguments")  # of a Gymnasium environment
    if on_stepped_clock(config).clock == "realtime":  # simulated time allows only one
        scenes["reset"] = config.choices.reset
    return {"domain": name_of_domain(config), "task": config.task.name, "scenes": scenes}


def _settings(config: DictConfig, key: str) -> dict[str, Any]:
    section = OmegaConf.select(config, key)
    plain: Any = OmegaConf.to_container(section, resolve=True) if section else {}
    return flatten(plain, f"{key}.")


def without_training_aids(config: DictConfig) -> DictConfig:
    """Return the configuration without the operator and reset used in simulated training."""
    alone = config.copy()
    OmegaConf.update(alone, "operator.simulated", None)
    if "backward" in config.reset:
        OmegaConf.update(alone, "reset.strategy", None)
    return alone
