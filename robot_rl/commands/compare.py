"""`robot-rl compare`: find the better of several policies in as few scenes as possible."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from policies.behaviour import Behaviour
from policies.errors import PolicyError
from robot_rl.commands.evaluate import circumstances, evaluator_of, keep, note
from robot_rl.config import section
from robot_rl.config.sections import ProofSection
from robot_rl.data.intervals import anytime_interval
from robot_rl.env.rollout import Seeds
from robot_rl.env.session import EpisodeResult
from robot_rl.errors import RobotRLError
from robot_rl.evaluation.evaluator import Evaluator, conditions, summarised
from robot_rl.evaluation.ledger import open_policy
from robot_rl.evaluation.statistics import Comparison, EvaluationResult
from robot_rl.run import RunDirectory


@dataclass
class Rival:
    """One of the policies."""

    name: str  # A, B, ...
    path: str  # its path
    behaviour: Behaviour  # the policy
    environment_steps: int  # training steps behind it
    # Its results, in scene order.
    episodes: list[EpisodeResult] = field(default_factory=list)


class Contest:
    """Runs policies in the same scenes until it is clear which are better than the first.

    In each scene, or batch of scenes that the evaluator runs in parallel, the policies act one
    after another in random order, and no message shows which one acts. A policy drops out once its
    comparison with the first is settled. The comparisons share the level (Bonferroni), so the
    confidence holds for all of them together.
    """

    def __init__(
        self, rivals: Sequence[Rival], proof: ProofSection, conditions: Mapping[str, Any]
    ) -> None:
        self._conditions = conditions  # of the scenes: see `robot_rl.evaluation.evaluator`
        self.first, *self.others = rivals
        self._open = list(self.others)
        self._level = (1.0 - proof.confidence) / len(self.others)
        self._most, self._first_seed = proof.scenes, proof.seed
        self._by_return = proof.score == "return"
        self._began = time.monotonic()
        self._rng = np.random.default_rng([self._first_seed, len(rivals)])

    def run(self, evaluator: Evaluator, say: Callable[[str], None]) -> None:
        """Run scenes until every comparison is settled."""
        while self._open:
            done = len(self.first.episodes)
            count = min(evaluator.slots, self._most - done)
            seeds = range(self._first_seed + done, self._first_seed + done + count)
            acting = [self.first, *self._open]
            acted: dict[str, list[EpisodeResult]] = {}
            for turn, number in enumerate(self._rng.permutation(len(acting)), 1):
                if evaluator.slots == 1:
                    say(f"scene {done + 1}: policy {turn} of {len(acting)}")
                found = evaluator.episodes(acting[number].behaviour, Seeds(seeds))
                acted[acting[number].name] = sorted(found, key=lambda episode: episode.seed)
            for scene in range(count):
                for rival in (self.first, *self._open):
                    rival.episodes.append(acted[rival.name][scene])
                scenes = len(self.first.episodes)
                self._open = [r for r in self._open if not self.comparison(r).settled(scenes)]
                if not self._open:
                    break
            say(f"{len(self.first.episodes)} of at most {self._most} scenes")

    def comparison(self, rival: Rival) -> Comparison:
        """Compare a policy with the first, in the scenes that both have run."""
        pairs = list(zip(self.first.episodes, rival.episodes, strict=False))
        scores = [(self._score(one), self._score(other)) for one, other in pairs]
        lost, won = sum(a > b for a, b in scores), sum(a < b for a, b in scores)
        return Comparison(lost, won, self._level, self._most)

    def sentence(self, rival: Rival) -> str:
        """Return one sentence: which of the two is better, if known."""
        compared, scenes = self.comparison(rival), len(rival.episodes)
        a, b = self.first.name, rival.name
        alone = "did better in" if self._by_return else "alone solved"
        counts = f"{b} {alone} {compared.won} of {scenes} scenes, {a} {alone} {compared.lost}"
        if not compared.beyond_noise:
            more = "and cannot be" if compared.settled(scenes) else "but may be"
            return (
                f"{a} and {b} are not told apart after {scenes} scenes, {more} in"
                f" {self._most}: {counts}"
            )
        better, worse = (a, b) if compared.worse else (b, a)
        sure = 100 * (1.0 - compared.level * len(self.others))
        together = f" ({sure:g} % for all of these together)" if len(self.others) > 1 else ""
        return (
            f"{better} is better than {worse} at {100 * (1.0 - compared.level):.4g} % confidence"
            f"{together} after {scenes} scenes: {counts} (p = {compared.chance:.2g})"
        )

    def result(self, rival: Rival) -> EvaluationResult:
        """Return a policy's success rate, with an interval that holds however the contest ends."""
        result = summarised(
            rival.episodes,
            rival.behaviour,
            seed_set="final",
            first_seed=self._first_seed,
            environment_steps=rival.environment_steps,
            wall_seconds=time.monotonic() - self._began,
            **self._conditions,
        )
        low, high = anytime_interval(result.successes, result.episodes)
        return replace(result, confidence_low=low, confidence_high=high)

    def _score(self, episode: EpisodeResult) -> float:
        if not self._by_return:
            return float(episode.success)
        # A person drove: it does not count for the policy.
        return -np.inf if episode.intervened_steps else episode.total_reward


def check_rivals(rivals: Sequence[Rival]) -> None:
    """Raise `RobotRLError` if two are the same, or made for different tasks, rates or actions."""
    for one, other in itertools.combinations(rivals, 2):
        a, b = one.behaviour, other.behaviour
        same_plans = (a.execute_steps, a.encoder_id) == (b.execute_steps, b.encoder_id)
        # Compare behaviour, not versions.
        if same_plans and a.acting.acts_as(b.acting):
            held_back = [r.name for r in (one, other) if r.behaviour.held_back]
            why = f": {' and '.join(held_back)} is held back, its clone acts" if held_back else ""
            raise RobotRLError(
                f"{one.name} and {other.name} are the same policy{why}",
                got=f"{one.path} and {other.path}",
                hint="name two that differ; those of a run are in RUN/checkpoints",
            )
    first, *others = rivals
    for rival in others:
        try:
            rival.behaviour.expect(**asdict(first.behaviour.interface))
        except PolicyError as error:
            problem = f"{rival.name} cannot be compared with {first.name}: {error}"
            raise RobotRLError(problem) from error


def run(config: DictConfig, overrides: Sequence[str], paths: Sequence[str]) -> None:
    """Compare the policies, print which is better, and record it in the first policy's run.

    Also prints and records if a person ends the comparison or the robot fails.
    """
    proof = section(config, "proof", ProofSection)
    which = config.evaluation.policy
    rivals = [
        Rival(chr(letter), path, *open_policy(path, which, config.runs_directory))
        for letter, path in enumerate(paths, ord("A"))
    ]
    check_rivals(rivals)
    for rival in rivals:
        if rival.behaviour.held_back:
            note(
                f"{rival.name} ({rival.path}) is held back: training had not shown that it is"
                " better, so the policy it began with acts"
            )
    contest = Contest(rivals, proof, conditions(config))
    with evaluator_of(config) as evaluator:
        for rival in rivals:
            evaluator.check_fit(rival.behaviour)
        try:
            contest.run(evaluator, note)
        finally:
            if contest.first.episodes:
                _conclude(RunDirectory(Path(config.run)), contest, proof.score, overrides)


def _conclude(run: RunDirectory, contest: Contest, score: str, overrides: Sequence[str]) -> None:
    for rival in (contest.first, *contest.others):
        print(f"{rival.name} ({rival.path}): {contest.result(rival)}")
    for rival in contest.others:
        print(contest.sentence(rival), flush=True)
    facts = circumstances(overrides)
    records = [
        {
            **facts,
            "policies": [contest.first.path, rival.path],
            "score": score,
            "evaluations": [contest.result(each).to_json() for each in (contest.first, rival)],
            "comparison": asdict(contest.comparison(rival)),
            "words": contest.sentence(rival),
        }
        for rival in contest.others
    ]
    keep(run, "compare", *records)
