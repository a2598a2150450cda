"""`robot-rl pretrain`: clone the demonstrations into a policy."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig

from policies import checkpoint
from policies.behaviour import Behaviour, Interface
from policies.vision import FEATURES, ImageEncoder, observed_keys
from robot_rl import devices
from robot_rl.algorithms.behavior_cloning import train
from robot_rl.algorithms.visual_cloning import REMAINING_MOTION, SeeingPolicy, remaining_motion
from robot_rl.config import save_resolved
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.schema import RowSchema
from robot_rl.data.windows import WindowSampler
from robot_rl.env.factory import make_env
from robot_rl.errors import RobotRLError
from robot_rl.progress import WorkProgress
from robot_rl.run import CLONED, LAST, RunDirectory


def open_demonstrations(config: DictConfig, run: RunDirectory | None) -> EpisodeDataset:
    """Open the demonstrations of `dataset`, or of the run, and check that they fit the task.

    Args:
        config: The configuration.
        run: The run directory; not needed where `dataset` names the demonstrations.

    Raises:
        SchemaMismatch: They are of another task, shape, rate or schema version.
        RobotRLError: There are none.
    """
    path = Path(str(config.dataset)) if config.dataset or run is None else run.demonstrations
    if not path.exists():
        raise RobotRLError(
            "there are no demonstrations",
            got=f"nothing at {path}",
            hint="record some with: robot-rl collect; or name some with dataset=PATH",
        )
    env = make_env(config)
    env.close()
    dataset = EpisodeDataset(path).expect(env.schema)
    if not dataset.successes.any():
        raise RobotRLError(
            f"none of the demonstrations in {path} is successful",
            got=f"{len(dataset)} episodes",
            expected="at least one to learn from",
        )
    return dataset


def pretrain(config: DictConfig, run: RunDirectory, progress: WorkProgress) -> Behaviour:
    """Train a policy on the demonstrations and write it to `checkpoints/bc`."""
    dataset = open_demonstrations(config, run)
    options = devices.make(config.cloning)
    schema = dataset.schema
    generator = torch.Generator().manual_seed(int(config.seed))
    vision = _image_encoder(config, schema, generator)
    keys = {name: int(np.prod(schema.dtype[name].shape)) for name in config.observation.states}
    cameras = () if vision is None else tuple(vision.cameras)
    sampler = WindowSampler.of_dataset(
        dataset,
        int(config.policy.observation_steps),
        int(config.policy.horizon),
        fields=(*keys, *cameras, "action"),
        only_successful=True,
    )
    # Only the rows that windows begin at, without images: what the normalisers are fitted on.
    steps = {name: sampler.arrays[name][sampler.indices] for name in (*keys, "action")}
    policy = devices.make(
        config.policy,
        arrays=steps,
        keys=observed_keys(keys, vision),
        generator=generator,
        identity=() if vision is None else (FEATURES,),
    )
    torch.set_num_threads(options.threads)
    shown = partial(_show, progress)
    if vision is None:
        policy = train(policy, sampler, options, int(config.seed), shown)
    else:
        poses = dataset.arrays(["state/tcp_pose"])["state/tcp_pose"]
        sampler.arrays[REMAINING_MOTION] = remaining_motion(poses, dataset.episode_ends)
        student = SeeingPolicy(policy, vision, options.random_shift, options.motion_weight)
        taught = train(student, sampler, options, int(config.seed), shown)
        policy, vision = taught.policy, taught.vision
    torch.set_num_threads(1)
    behaviour = Behaviour(
        policy,
        Interface(schema.task, schema.control_rate_hz, schema.action_names),
        execute_steps=int(config.execute_steps),
        vision=vision,
    )
    if run.has_folder(LAST):
        raise RobotRLError(
            f"{run.path} has learned online from its cloned policy",
            hint="clone into a new run: robot-rl pretrain"
            f" dataset={config.dataset or run.demonstrations}",
        )
    with run.atomic_folder(CLONED) as folder:
        checkpoint.save(folder / "policy", behaviour)
    return behaviour


def _show(progress: WorkProgress, update: int, _: dict[str, float]) -> None:
    progress.update(update)


def _image_encoder(
    config: DictConfig, schema: RowSchema, generator: torch.Generator
) -> ImageEncoder | None:
    """Make the configured image encoder for the dataset's cameras; None without images."""
    if config.observation.vision is None:
        return None
    cameras = {f.name: f.shape for f in schema.fields if f.name.startswith("images/")}
    colour = {name: shape for name, shape in cameras.items() if shape[-1] == 3}
    encoder = devices.make(config.observation.vision, cameras=colour, generator=generator)
    assert isinstance(encoder, ImageEncoder)
    return encoder


def load_cloned(run: RunDirectory) -> Behaviour:
    """Load the cloned policy of a run.

    Raises:
        CheckpointError: There is none, or a file of it is damaged.
    """
    return checkpoint.load(run.complete_folder(CLONED) / "policy")


def run(config: DictConfig) -> None:
    """Clone the demonstrations of `run`, or of `dataset` into a new run directory."""
    if config.run:
        directory = RunDirectory.open(config.run, config.runs_directory)
        open_demonstrations(config, directory)
    else:
        directory = create_run(config)
    with directory.claim("train"), WorkProgress(int(config.cloning.updates), "updates") as progress:
        progress.phase("cloning")
        pretrain(config, directory, progress)
        progress.note(f"written to {directory.path / CLONED}")


def create_run(config: DictConfig) -> RunDirectory:
    """Make a run directory with its configuration, once its demonstrations are known to fit."""
    if config.dataset:
        # Absolute: the run is gone on with from other working directories too.
        config.dataset = str(Path(config.dataset).absolute())
        open_demonstrations(config, None)
    directory = RunDirectory.create(config.task.name, config.runs_directory)
    save_resolved(config, directory.path)
    return directory
