"""The image encoder: trained on demonstrations and on exploration, then frozen."""

from __future__ import annotations

import torch
from omegaconf import DictConfig

from policies import registry
from policies.behaviour import Behaviour, Interface
from policies.compute import explained_memory
from policies.vision import observed_keys
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.env.factory import observed_widths
from robot_rl.env.rollout import SeedStream
from robot_rl.learning.algorithms.visual_cloning import (
    REMAINING_MOTION,
    Explored,
    SeeingPolicy,
    VisionTraining,
    remaining_motion,
)
from robot_rl.learning.cloning import make_image_encoder, shown_training, untrained
from robot_rl.learning.recipe import Stage
from robot_rl.learning.workbench import Workbench
from robot_rl.replay.episode_rows import EpisodeRows
from robot_rl.run import DEMONSTRATIONS, VISION, RunDirectory

_POSE = "state/tcp_pose"


class Vision(Stage):
    """Trains an encoder of the demonstrations' cameras along with a policy, which is then dropped.

    An encoder that has seen successes alone is off by centimetres wherever else the robot comes
    to. So the policy then explores for some episodes, with noise, and training goes on with what
    the cameras saw there; how the episodes ended does not matter.
    """

    needs = (DEMONSTRATIONS,)
    makes = (VISION,)

    def wanted(self, config: DictConfig) -> bool:
        """Only where the policy sees the features of an encoder of its own."""
        return config.observation.vision is not None

    def done(self, config: DictConfig, run: RunDirectory, *, recorded: bool) -> bool:
        """As soon as the encoder is there."""
        return run.has_folder(VISION)

    @explained_memory("lower observation.vision_training.cloning.batch_size, or add device=cpu")
    def run(self, bench: Workbench) -> None:
        """Train, explore, train again."""
        config, dataset = bench.config, bench.demonstrations()
        states = observed_widths(config, dataset.schema)
        generator = bench.generator("vision")
        vision = make_image_encoder(config, dataset.schema, generator).to(bench.device)
        options: VisionTraining = registry.make(config.observation.vision_training)
        fields = (*states, *vision.cameras, "action")
        rows = EpisodeRows.of_datasets([dataset], fields, only_successful=True)
        poses = dataset.arrays([_POSE])[_POSE]
        rows.arrays[REMAINING_MOTION] = remaining_motion(poses, dataset.episode_ends)
        policy = untrained(config, rows, observed_keys(states, vision), generator)
        student = SeeingPolicy(policy, vision, options)
        taught = _train(config, student, rows, options, "training the image encoder")
        if options.exploration_episodes:
            explored = _explore(bench, dataset, taught, options)
            taught.requires_grad_(True)  # the average, which took none
            student = SeeingPolicy(taught.policy, taught.vision, options, explored)
            taught = _train(config, student, rows, options, "training it on the exploration too")
        bench.checkpoint(VISION, _behaviour(config, dataset, taught))


def exploration_steps(run: RunDirectory) -> int:
    """Environment steps that were taken for the image encoder."""
    if not run.exploration.exists():
        return 0
    dataset = EpisodeDataset(run.exploration)
    return int(dataset.episode_ends[-1]) - len(dataset) if len(dataset) else 0


def _train(
    config: DictConfig,
    student: SeeingPolicy,
    rows: EpisodeRows,
    options: VisionTraining,
    words: str,
) -> SeeingPolicy:
    torch.set_num_threads(options.threads)
    taught = shown_training(student, rows, options.cloning, int(config.seed), words)
    torch.set_num_threads(1)
    return taught


def _behaviour(config: DictConfig, dataset: EpisodeDataset, taught: SeeingPolicy) -> Behaviour:
    schema = dataset.schema
    interface = Interface(schema.task, schema.control_rate_hz, schema.action_names)
    return Behaviour(taught.policy, interface, int(config.execute_steps), vision=taught.vision)


def _explore(
    bench: Workbench, dataset: EpisodeDataset, taught: SeeingPolicy, options: VisionTraining
) -> Explored:
    """Let the policy act with noise, record all episodes, and give what the cameras saw."""
    acting = _behaviour(bench.config, dataset, taught)
    acting = acting.exploring("mean", "uniform", options.exploration_noise)
    count, path = options.exploration_episodes, bench.run.exploration
    with EpisodeWriter(path, dataset.schema) as writer:
        # A recording that was interrupted goes on where it stopped.
        known = len(writer)
        for episode in bench.gather(
            acting, count, SeedStream.EXPLORATION, "exploring for the image encoder", done=known
        ):
            episode.keep(writer, SOURCE_POLICY)
    recorded = EpisodeDataset(path)
    arrays = recorded.arrays([_POSE, *taught.vision.cameras])
    return Explored(arrays.pop(_POSE), arrays, recorded.episode_ends)
