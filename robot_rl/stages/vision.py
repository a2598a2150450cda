"""Training of the image encoder: on demonstrations, on exploration, and then no more."""

from __future__ import annotations

import itertools
from contextlib import closing
from functools import partial

import torch
from omegaconf import DictConfig

from policies import registry
from policies.behaviour import Behaviour, Interface
from policies.compute import compute_device
from policies.runner import PolicyRunner
from policies.vision import ImageEncoder, observed_keys
from robot_rl.algorithms.behavior_cloning import train
from robot_rl.algorithms.visual_cloning import (
    REMAINING_MOTION,
    Explored,
    SeeingPolicy,
    VisionTraining,
    remaining_motion,
)
from robot_rl.console.telemetry import TelemetryEnv
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import SOURCE_POLICY, RowSchema
from robot_rl.env.operator import OperatorEvent
from robot_rl.env.rollout import Seeds, SeedStream, rollout, training_seed
from robot_rl.processes.progress import WorkProgress
from robot_rl.replay.episode_rows import EpisodeRows
from robot_rl.run import RunDirectory
from robot_rl.stages.cloning import show, untrained
from robot_rl.stages.driven import make_attended_env, once_free

_POSE = "state/tcp_pose"


def train_image_encoder(
    config: DictConfig,
    run: RunDirectory,
    dataset: EpisodeDataset,
    states: dict[str, int],
    generator: torch.Generator,
) -> ImageEncoder:
    """Train an encoder of the dataset's cameras along with a policy, which is then dropped.

    An encoder that has seen successes alone is off by centimetres wherever else the robot comes
    to. So the policy then explores for some episodes, with noise, and training goes on with what
    the cameras saw there; how the episodes ended does not matter.

    Args:
        config: The configuration.
        run: Where `exploration.zarr` is written.
        dataset: The demonstrations.
        states: Name → width of the state keys that the policy sees beside the features.
        generator: Source of the initial weights.
    """
    vision = make_image_encoder(config, dataset.schema, generator)
    vision.to(compute_device(config))
    options: VisionTraining = registry.make(config.observation.vision_training)
    fields = (*states, *vision.cameras, "action")
    rows = EpisodeRows.of_datasets([dataset], fields, only_successful=True)
    poses = dataset.arrays([_POSE])[_POSE]
    rows.arrays[REMAINING_MOTION] = remaining_motion(poses, dataset.episode_ends)
    policy = untrained(config, rows, observed_keys(states, vision), generator)
    student = SeeingPolicy(policy, vision, options)
    taught = _train(config, student, rows, options, "training the image encoder")
    if options.exploration_episodes:
        taught.requires_grad_(True)  # the average, which took none
        explored = _explore(config, run, taught, options)
        student = SeeingPolicy(taught.policy, taught.vision, options, explored)
        taught = _train(config, student, rows, options, "training it on the exploration too")
    return taught.vision


def make_image_encoder(
    config: DictConfig, schema: RowSchema, generator: torch.Generator
) -> ImageEncoder:
    """Make the configured image encoder, untrained, for the colour cameras of a schema."""
    cameras = {
        f.name: f.shape
        for f in schema.fields
        if f.name.startswith("images/") and f.shape[-1:] == (3,)
    }
    encoder = registry.make(config.observation.vision, cameras=cameras, generator=generator)
    assert isinstance(encoder, ImageEncoder)
    return encoder


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
    with WorkProgress(options.cloning.updates, "updates") as progress:
        progress.phase(words)
        shown = partial(show, progress)
        taught = train(student, rows, options.cloning, int(config.seed), shown)
    torch.set_num_threads(1)
    return taught


def _explore(
    config: DictConfig, run: RunDirectory, taught: SeeingPolicy, options: VisionTraining
) -> Explored:
    """Let the policy act with noise, record all episodes, and give what the cameras saw."""
    # A recording that was interrupted goes on where it stopped.
    recorded = len(EpisodeDataset(run.exploration)) if run.exploration.exists() else 0
    if recorded < options.exploration_episodes:
        _act(config, run, taught, options)
    dataset = EpisodeDataset(run.exploration)
    arrays = dataset.arrays([_POSE, *taught.vision.cameras])
    return Explored(arrays.pop(_POSE), arrays, dataset.episode_ends)


def _act(
    config: DictConfig, run: RunDirectory, taught: SeeingPolicy, options: VisionTraining
) -> None:
    """Record the episodes of exploration that are missing.

    An operator may drive, halt the robot and discard an episode, which is then run again.
    """
    env, operated = make_attended_env(config, run)
    behaviour = Behaviour(
        taught.policy,
        Interface(env.schema.task, env.schema.control_rate_hz, env.schema.action_names),
        execute_steps=int(config.execute_steps),
        vision=taught.vision,
    ).exploring("mean", "uniform", options.exploration_noise)
    runner, recorder = PolicyRunner(behaviour), RowBuilder(env.schema, SOURCE_POLICY)
    seeds = (training_seed(int(config.seed), SeedStream.EXPLORATION, n) for n in itertools.count())
    count = options.exploration_episodes
    with (
        closing(env),
        EpisodeWriter(run.exploration, env.schema) as writer,
        WorkProgress(count, "episodes") as progress,
    ):
        progress.phase("exploring")
        progress.note(_announcement(env, count - len(writer), options.exploration_noise))
        left = Seeds(itertools.islice(seeds, len(writer), count))
        free = once_free(left, env, progress.note)
        for result in rollout([env], runner, free, recorder=recorder, note=progress.note):
            # Without a step the robot has cut it before anything was done.
            if not result.steps or operated.ended_by is OperatorEvent.DISCARD:
                left.again(result.seed)
                continue
            rows = [{f.name: row[f.name] for f in env.schema.fields} for row in result.rows]
            writer.append(
                rows,
                seed=result.seed,
                instruction=env.task.instruction,
                success=result.success,
                source=SOURCE_POLICY,
            )
            progress.episode(result.success)
            progress.update(len(writer))


def _announcement(env: TelemetryEnv, episodes: int, noise: float) -> str:
    """What the robot is about to do, for whoever stands beside it."""
    seconds = env.task.time_limit_steps * env.clock.period
    return (
        f"exploring for the image encoder: in {episodes} episodes of up to {seconds:g} s the"
        f" half-trained policy drives the robot, with noise of up to {noise:g} on each action in"
        " [-1, 1]; it will miss, and touch what is in its way"
    )
