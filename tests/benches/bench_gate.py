"""How often the gates of offline rounds are wrong about candidates whose true success is known."""

from __future__ import annotations

import copy
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import numpy as np
from omegaconf import DictConfig
from scipy.stats import spearmanr

from policies import registry
from policies.behaviour import Behaviour
from robot_rl.config import Settings, compose
from robot_rl.data.intervals import clopper_pearson
from robot_rl.evaluation.evaluator import Evaluator
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.extras.zoo.model_gate import ModelGate
from robot_rl.learning.algorithms.generative import Generative
from robot_rl.learning.gate import Answer, Candidate, EpisodeGate, Gate, PairedTest
from robot_rl.learning.recipe import Stage
from robot_rl.learning.stages.clone import Clone
from robot_rl.learning.stages.collect import Collect
from robot_rl.learning.stages.gather import EpisodeOutcome, outcomes
from robot_rl.learning.stages.offline import OfflineTraining
from robot_rl.learning.workbench import Workbench
from robot_rl.run import ACCEPTED, GATHERED, RunDirectory

_RECIPE = (
    "recipe=rl100_action_gradient",
    "recipe.offline_updates=900",
    "algorithm.schedule.critic_only_updates=250",
)
# The size of the policy's steps decides what becomes of it: too large, fitting, or too small.
_RATE = "algorithm.settings.actor_rate"
_OPERATORS = (
    ("algorithm=action_gradient",),
    ("algorithm=action_gradient", f"{_RATE}=0.003", "algorithm.settings.imitation_weight=0"),
    ("algorithm=denoising_ppo",),
    ("algorithm=denoising_ppo", f"{_RATE}=0.0001"),
    ("algorithm=advantage_weighted",),
    ("algorithm=advantage_weighted", f"{_RATE}=0.003"),
)
# By the gain in true success; a difference of less than five points hardly matters.
_KINDS: dict[str, Callable[[float], bool]] = {
    "worse by 5 points": lambda gain: gain < -0.0499,
    "worse": lambda gain: gain < 0,
    "within 5 points": lambda gain: abs(gain) < 0.0499,
    "better": lambda gain: gain > 0,
    "better by 5 points": lambda gain: gain > 0.0499,
}
_DRAWS = 200
_DECISIONS = get_args(Answer)


def run(config: DictConfig) -> dict[str, Any]:
    """Judge candidates of `bench.seeds` seeds from `seed` on; one JSON line of each goes to stderr.

    Of each seed demonstrations are cloned, the clone gathers episodes as in a round, and operators
    improve it on every other one of them. True success is that of `evaluation.final_episodes`
    scenes, which no gate sees. `gate=NAME` changes a gate's settings.

    Returns:
        `accepted_success` of the clones; `gains` of the candidates in true success; of `gates`, by
        how a candidate really is, how many got each verdict, with exact intervals of the shares;
        `redrawn`, these shares where `episodes` judges each many times, in scenes drawn from those
        of the truth; `mean_pairs` of episodes that it took; and how `ope` ranks the candidates.
    """
    with tempfile.TemporaryDirectory(prefix="gate-") as folder:
        seeds = range(int(config.seed), int(config.seed) + int(config.bench.seeds))
        records = [r for seed in seeds for r in _of_seed(config, seed, Path(folder) / str(seed))]
    return summary(records)


def summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """See `run`."""
    gains = [float(record["gain"]) for record in records]
    kinds = {kind: [r for r in records if belongs(r["gain"])] for kind, belongs in _KINDS.items()}
    predicted = [float(record["figures"]["ope"]["gain"]) for record in records]
    return {
        "accepted_success": sorted({r["seed"]: r["accepted"] for r in records}.values()),
        "gains": sorted(gains),
        "gates": {
            gate: {
                kind: _decisions([r["verdicts"][gate] for r in of]) for kind, of in kinds.items()
            }
            for gate in records[0]["verdicts"]
        },
        "redrawn": {
            kind: {name: float(np.mean([r["redrawn"][name] for r in of])) for name in _DECISIONS}
            for kind, of in kinds.items()
            if of
        },
        "mean_pairs": float(np.mean([record["pairs"] for record in records])),
        "rank_correlation_of_ope": float(spearmanr(predicted, gains).statistic),
    }


def _decisions(told: Sequence[str]) -> dict[str, Any]:
    """Count, and interval of its share, of each decision."""
    counts = {decision: told.count(decision) for decision in _DECISIONS}
    shares = {name: clopper_pearson(count, len(told)) for name, count in counts.items()}
    return {"candidates": len(told), "counts": counts, "intervals": shares}


def _of_seed(config: DictConfig, seed: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Judge the candidates of a seed."""
    gates = {
        name: registry.make(compose([f"gate={name}"]).gate, Gate) for name in ("ope", "episodes")
    }
    gates[config.choices.gate] = registry.make(config.gate, Gate)
    by_model, by_episodes = gates["ope"], gates["episodes"]
    assert isinstance(by_model, ModelGate)
    assert isinstance(by_episodes, EpisodeGate)
    scenes = f"evaluation.final_episodes={config.evaluation.final_episodes}"
    words = [f"task={config.choices.task}", f"seed={seed}", scenes, *_RECIPE]
    bench = _prepared(words, folder)
    accepted = bench.policy(ACCEPTED)
    candidates = _candidates(words, bench, accepted, by_model.held_out)
    judged = {name: Candidate(behaviour, accepted, 1) for name, behaviour in candidates}
    told = by_model.judge_each(bench, list(judged.values()))
    with closing(Evaluator(bench.settings.environment, bench.run, bench.say)) as evaluator:
        before = evaluator.evaluate(accepted, 0, "final")
        known = [outcome.success for outcome in outcomes(bench.run)]
        for number, (name, candidate) in enumerate(judged.items()):
            after = evaluator.evaluate(candidate.behaviour, 0, "final")
            # Its round alone: what others have shown of the accepted policy is not known in it.
            shutil.copytree(bench.run.path, place := folder / f"candidate-{number}")
            alone = Workbench(bench.settings, RunDirectory(place))
            verdict = by_episodes.judge(alone, candidate)
            shutil.rmtree(place)
            shares = _redrawn(by_episodes, known, before, after, np.random.default_rng(seed))
            record = {
                "seed": seed,
                "candidate": name,
                "accepted": before.success_rate,
                "gain": after.success_rate - before.success_rate,
                "verdicts": {"episodes": verdict.decision, "ope": told[number].decision},
                "redrawn": shares,
                "pairs": verdict.figures["pairs"],
                "figures": {"episodes": verdict.figures, "ope": told[number].figures},
            }
            sys.stderr.write(json.dumps(record) + "\n")
            yield record


def _redrawn(
    gate: EpisodeGate,
    known: Sequence[bool],
    before: EvaluationResult,
    after: EvaluationResult,
    rng: np.random.Generator,
) -> dict[str, float]:
    """Shares of the decisions, were the gate to judge again and again in scenes of the truth."""
    told: list[str] = []
    for _ in range(_DRAWS):
        scenes = rng.permutation(after.episodes)[: gate.pairs].tolist()
        both = (
            [EpisodeOutcome(n not in of.failures, False, 0) for n in scenes]
            for of in (before, after)
        )
        told.append(PairedTest(gate, known).decide(zip(*both, strict=True)).decision)
    return {decision: told.count(decision) / _DRAWS for decision in _DECISIONS}


def _prepared(words: Sequence[str], folder: Path) -> Workbench:
    """Demonstrations, the clone, which is accepted, and episodes that it gathers."""
    settings = Settings.of(compose(words))
    name = str(settings.environment.task.name)
    bench = Workbench(settings, RunDirectory.create(name, folder))
    section = settings.recipe["stages"]["rounds"]["of"]["gather"]
    gather = registry.make(section, Stage, settings=settings, round=1)
    for stage in (Collect(settings), Clone(settings), gather):
        stage.run(bench)
    return bench


def _candidates(
    words: Sequence[str], bench: Workbench, accepted: Behaviour, held_out: int
) -> Iterator[tuple[str, Behaviour]]:
    """What each operator makes of the accepted policy, after few updates and after more."""
    for operator in _OPERATORS:
        settings = Settings.of(compose([*words, *operator]))
        bench.say(f"seed {settings.seed}: {' '.join(operator)}")
        last = settings.schedule.offline_updates
        training = OfflineTraining(
            Workbench(settings, bench.run),
            (GATHERED,),
            accepted,
            lambda number: not held_out or number % held_out != 0,
        )
        with closing(training):
            algorithm = training.algorithm
            assert isinstance(algorithm, Generative)
            for updates in (last // 3, last):
                training.train(updates - training.updates)
                improved = accepted.learned(copy.deepcopy(algorithm.average), updates)
                yield " ".join([*operator, f"updates={updates}"]), improved
