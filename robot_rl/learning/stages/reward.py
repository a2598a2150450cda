"""Stage `Reward`: a success classifier from recorded examples, with its error rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from policies import registry
from policies.compute import explained_memory
from policies.networks import warm_up_cosine
from policies.vision import random_shift
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.errors import RobotRLError, in_shell
from robot_rl.evaluation.reward_report import RewardRecord, write_reward_report
from robot_rl.learning.recipe import Stage
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.rewards.calibration import Limits, Scored, calibrate, validate, weaknesses
from robot_rl.rewards.classifier import SuccessClassifier, TrainedClassifier
from robot_rl.rewards.examples import ExampleEpisode, Examples, Images
from robot_rl.run import EXAMPLES, REWARD

RECORD = "reward.json"
_WARM_UP = 20
_CHUNK = 64  # frames per inference batch


class Reward(Stage):
    """Trains, calibrates and tests a success classifier, and reports how reliable it is."""

    needs = (EXAMPLES,)
    makes = (REWARD,)

    @explained_memory("lower classifier.training.batch_size, or add device=cpu")
    def run(self, bench: Workbench) -> None:
        """Train on the run's examples. Raise `RewardError` if there are too few."""
        classifier, seed = bench.settings.classifier, bench.settings.seed
        options = registry.make(classifier["training"], ClassifierTraining)
        torch.set_num_threads(options.threads)
        examples = Examples(_open(bench.run.reward_examples))
        split = examples.split(options.validation_share, np.random.default_rng(seed))
        given = {"cameras": examples.cameras, "generator": bench.generator()}
        network = registry.make(classifier["model"], SuccessClassifier, **given)
        network.to(bench.device)
        with WorkProgress(options.updates, "updates") as progress:
            progress.phase("training the success classifier")
            ClassifierTrainer(network, examples, split[0], options, seed).train(progress.update)
        limits = Limits(
            options.false_positive_frames,
            options.false_positive_episodes,
            int(classifier["consecutive_frames"]),
        )
        decision = calibrate(_scored(network, examples, split[1], "calibrating"), limits)
        trained = TrainedClassifier(network, decision, examples.dataset.schema.task)
        held_out, episodes = examples, split[1]
        if classifier["test"]:
            held_out = Examples(_open(Path(classifier["test"])), sorted(network.cameras))
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
            separate_test=bool(classifier["test"]),
        )
        network.to("cpu")
        with bench.run.atomic_folder(REWARD) as folder:
            trained.save(folder)
        bench.run.save_json(RECORD, record.to_json())
        write_reward_report(bench.run.path, record, held_out, scored)
        words = ("reward=classifier", f"reward.source.path={bench.run.path / REWARD}")
        bench.say(str(record))
        for warning in record.warnings:
            bench.say(f"warning: {warning}")
        bench.say(f"report: {bench.run.path / 'reward.html'}")
        bench.say(f"use it: {in_shell('robot-rl', 'train', *words)}")


def _open(path: Path) -> EpisodeDataset:
    if not path.exists():
        raise RobotRLError(
            "there are no examples of success and failure",
            got=f"nothing at {path}",
            hint="record some with: robot-rl collect-reward",
        )
    return EpisodeDataset(path)


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


@dataclass(frozen=True)
class ClassifierTraining:
    """Training constants."""

    updates: int  # gradient updates; negatives are re-selected after the first third
    batch_size: int  # examples per update, half of them positive
    learning_rate: float  # peak learning rate of AdamW, followed by a cosine decay to 0
    weight_decay: float  # AdamW's weight decay
    random_shift: int  # largest shift of the images [pixels]
    brightness: float  # maximum change of an image's gain, and of its offset as a fraction of 255
    # Negative frames used per episode. At first any frames, later half of them the frames that look
    # most like success.
    frames_per_episode: int
    validation_share: float  # fraction of the episodes that is held out
    false_positive_frames: float  # maximum upper 95 % bound of the per-frame false-positive rate
    false_positive_episodes: float  # the same per episode
    threads: int  # CPU threads; with more than one the summation order varies, so bits differ


@dataclass(eq=False)
class ClassifierTrainer:
    """Trains a classifier on a set of episodes."""

    network: SuccessClassifier  # untrained; trained in place
    examples: Examples  # source of the episodes
    episodes: Sequence[int]  # training episodes
    options: ClassifierTraining  # training constants
    seed: int  # seed of all random draws

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._generator = torch.Generator().manual_seed(self.seed)
        parts = [self._first_frames(e) for e in self._read()]
        self._positives = _joined([positives for positives, _ in parts])
        self._negatives = _joined([negatives for _, negatives in parts])

    def train(self, on_progress: Callable[[int], None] = lambda update: None) -> None:
        """Train. Leaves the network in evaluation mode."""
        options, network = self.options, self.network
        optimizer = torch.optim.AdamW(
            network.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
        )
        for update in range(options.updates):
            if update == options.updates // 3:
                self._negatives = _joined([self._hard_frames(e) for e in self._read()])
            rate = options.learning_rate * warm_up_cosine(update, _WARM_UP, options.updates)
            optimizer.param_groups[0]["lr"] = rate
            network.train()
            images, labels = self._batch()
            logits = network(images)
            loss = functional.binary_cross_entropy_with_logits(logits, labels.to(logits))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            on_progress(update + 1)
        network.eval()

    def _read(self) -> Iterator[ExampleEpisode]:
        return (self.examples.episode(index) for index in self.episodes)

    def _first_frames(self, episode: ExampleEpisode) -> tuple[Images, Images]:
        """Return all positive frames of an episode and some of the negative ones."""
        frames = self.network.frames
        negative = np.flatnonzero(episode.labels.negative)
        chosen = self._rng.permutation(negative)[: self.options.frames_per_episode]
        positive = np.flatnonzero(episode.labels.positive)
        return episode.stacked(positive, frames), episode.stacked(chosen, frames)

    def _hard_frames(self, episode: ExampleEpisode) -> Images:
        """Return the negatives that now look most like success, plus as many other negatives."""
        scores = score(self.network.eval(), episode).scores
        negative = np.flatnonzero(episode.labels.negative)
        ranked = negative[np.argsort(-scores[negative], kind="stable")]
        half = max(1, self.options.frames_per_episode // 2)
        others = self._rng.permutation(ranked[half:])[:half]
        return episode.stacked(np.concatenate([ranked[:half], others]), self.network.frames)

    def _batch(self) -> tuple[Images, torch.Tensor]:
        half = self.options.batch_size // 2
        parts = []
        for kind in (self._positives, self._negatives):
            chosen = self._rng.integers(len(next(iter(kind.values()))), size=half)
            parts.append({name: self._augmented(column[chosen]) for name, column in kind.items()})
        return _joined(parts), torch.cat([torch.ones(half), torch.zeros(half)])

    def _augmented(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Shift and brighten images (n, frames, H, W, 3), equally for all frames of an example."""
        count, frames, height, width, channels = images.shape
        side_by_side = images.transpose(0, 2, 3, 1, 4).reshape(count, height, width, -1)
        shifted = random_shift(side_by_side, self.options.random_shift, self._generator)
        most = self.options.brightness
        gain, offset = self._rng.uniform(-most, most, (2, count, 1, 1, 1)).astype(np.float32)
        lit = shifted * (1 + gain) + 255 * offset
        whole: npt.NDArray[np.uint8] = lit.clip(0, 255).astype(np.uint8)
        back = whole.reshape(count, height, width, frames, channels)
        return back.transpose(0, 3, 1, 2, 4)


@torch.no_grad()
def score(network: SuccessClassifier, episode: ExampleEpisode) -> Scored:
    """Return the logits of all frames of an episode. The network must be in evaluation mode."""
    rows = np.arange(len(episode.labels.positive))
    parts = [
        network(episode.stacked(rows[at : at + _CHUNK], network.frames)).cpu().numpy()
        for at in range(0, len(rows), _CHUNK)
    ]
    return Scored(episode.index, np.concatenate(parts).astype(np.float64), episode.labels)


def _joined(parts: Sequence[Images]) -> Images:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
