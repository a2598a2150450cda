"""A success classifier from recorded examples, and how far to trust it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from policies import registry
from policies.compute import explained_memory
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.errors import RobotRLError
from robot_rl.evaluation.reward_report import RewardRecord, write_reward_report
from robot_rl.learning.recipe import Stage
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.progress import WorkProgress
from robot_rl.rewards.calibration import Limits, Scored, calibrate, validate, weaknesses
from robot_rl.rewards.classifier import SuccessClassifier, TrainedClassifier
from robot_rl.rewards.examples import Examples
from robot_rl.rewards.training import ClassifierTrainer, ClassifierTraining, score
from robot_rl.run import EXAMPLES, REWARD

RECORD = "reward.json"


class Reward(Stage):
    """Trains, calibrates and judges a success classifier, and reports how far to trust it."""

    needs = (EXAMPLES,)
    makes = (REWARD,)

    @explained_memory("lower classifier.training.batch_size, or add device=cpu")
    def run(self, bench: Workbench) -> None:
        """Train on the examples of the run.

        Raises:
            RewardError: Too few examples, or others than the test recording's.
        """
        config = bench.config
        options: ClassifierTraining = registry.make(config.classifier.training)
        torch.set_num_threads(options.threads)
        examples = Examples(_open(bench.run.reward_examples))
        seed = int(config.seed)
        split = examples.split(options.validation_share, np.random.default_rng(seed))
        network = _make_network(bench, examples)
        with WorkProgress(options.updates, "updates") as progress:
            progress.phase("training the success classifier")
            ClassifierTrainer(network, examples, split[0], options, seed).train(progress.update)
        limits = Limits(
            options.false_positive_frames,
            options.false_positive_episodes,
            int(config.classifier.consecutive_frames),
        )
        decision = calibrate(_scored(network, examples, split[1], "calibrating"), limits)
        trained = TrainedClassifier(network, decision, examples.dataset.schema.task)
        held_out, episodes = examples, split[1]
        if config.classifier.test:
            held_out = Examples(_open(Path(config.classifier.test)), sorted(network.cameras))
            held_out.dataset.expect(examples.dataset.schema)
            episodes = list(range(len(held_out)))
        scored = [
            replace(s, scores=decision.probability(s.scores))
            for s in _scored(network, held_out, episodes, "judging")
        ]
        result = validate(scored, decision.threshold, limits.consecutive_frames)
        positives = sum(int(examples.episode(i).labels.positive.sum()) for i in split[0])
        record = RewardRecord(
            trained=trained,
            validation=result,
            warnings=weaknesses(result, limits),
            limits=limits,
            training_episodes=len(split[0]),
            training_positives=positives,
            validation_episodes=len(split[1]),
            tested_on=str(held_out.dataset.path),
            separate_test=bool(config.classifier.test),
        )
        network.to("cpu")
        with bench.run.atomic_folder(REWARD) as folder:
            trained.save(folder)
        bench.run.save_json(RECORD, record.to_json())
        write_reward_report(bench.run.path, record, held_out, scored)
        bench.say(str(record))
        for warning in record.warnings:
            bench.say(f"warning: {warning}")
        bench.say(
            f"report: {bench.run.path / 'reward.html'}\nuse it: robot-rl train reward=classifier"
            f" reward.source.path={bench.run.path / REWARD}"
        )


def _open(path: Path) -> EpisodeDataset:
    if not path.exists():
        raise RobotRLError(
            "there are no examples of success and failure",
            got=f"nothing at {path}",
            hint="record some with: robot-rl collect-reward",
        )
    return EpisodeDataset(path)


def _make_network(bench: Workbench, examples: Examples) -> SuccessClassifier:
    model, generator = bench.config.classifier.model, bench.generator()
    network = registry.make(model, cameras=examples.cameras, generator=generator)
    assert isinstance(network, SuccessClassifier)
    return network.to(bench.device)


def _scored(
    network: SuccessClassifier, examples: Examples, episodes: list[int], words: str
) -> list[Scored]:
    with WorkProgress(len(episodes), "episodes") as progress:
        progress.phase(words)
        scored = []
        for index in episodes:
            scored.append(score(network, examples.episode(index)))
            progress.update(len(scored))
        return scored
