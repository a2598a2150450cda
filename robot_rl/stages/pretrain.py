"""`robot-rl pretrain`: clone the demonstrations into a policy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from omegaconf import DictConfig

from policies import checkpoint
from policies.behaviour import Behaviour, Interface
from policies.policy import INSTRUCTION, ChunkPolicy
from policies.vision import FEATURES, ImageEncoder, observed_keys
from robot_rl import devices
from robot_rl.algorithms.behavior_cloning import Metrics, train
from robot_rl.algorithms.visual_cloning import REMAINING_MOTION, SeeingPolicy, remaining_motion
from robot_rl.compute import compute_device, explained_memory
from robot_rl.config import save_resolved
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.windows import WindowSampler
from robot_rl.env.factory import make_env, observed_widths
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


@explained_memory("lower cloning.batch_size, or add device=cpu")
def pretrain(config: DictConfig, run: RunDirectory) -> Behaviour:
    """Train a policy on the demonstrations and write it to `checkpoints/bc`.

    With cameras their image encoder is trained first, and then frozen: the policy is cloned on its
    features, which are those that replay will keep.
    """
    torch.set_num_threads(1)
    dataset = open_demonstrations(config, run)
    schema = dataset.schema
    generator = torch.Generator().manual_seed(int(config.seed))
    states = observed_widths(config, schema)
    vision = None
    if config.observation.vision is not None:
        vision = _train_image_encoder(config, dataset, states, generator)
    # Cameras that the policy itself looks at, with an image encoder of its own.
    cameras = [f"images/{name}" for name in config.policy.get("cameras", ())]
    sampler = _windows(config, dataset, (*states, *cameras, INSTRUCTION, "action"))
    if vision is not None:
        sampler.arrays[FEATURES] = _encoded(dataset, vision)
    policy = _untrained(config, sampler, observed_keys(states, vision), generator)
    if policy.conditioned:
        _check_instructions(dataset)
    with WorkProgress(int(config.cloning.updates), "cloning updates") as progress:
        progress.phase("cloning")
        shown = partial(_show, progress)
        policy = train(policy, sampler, devices.make(config.cloning), int(config.seed), shown)
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


def _train_image_encoder(
    config: DictConfig, dataset: EpisodeDataset, states: dict[str, int], generator: torch.Generator
) -> ImageEncoder:
    """Train an encoder of the dataset's cameras along with a policy, which is then dropped."""
    schema = dataset.schema
    cameras = {
        f.name: f.shape
        for f in schema.fields
        if f.name.startswith("images/") and f.shape[-1:] == (3,)
    }
    vision = devices.make(config.observation.vision, cameras=cameras, generator=generator)
    options = devices.make(config.observation.vision_training)
    sampler = _windows(config, dataset, (*states, *cameras, "action"))
    policy = _untrained(config, sampler, observed_keys(states, vision), generator)
    poses = dataset.arrays(["state/tcp_pose"])["state/tcp_pose"]
    sampler.arrays[REMAINING_MOTION] = remaining_motion(poses, dataset.episode_ends)
    vision.to(compute_device(config))
    student = SeeingPolicy(policy, vision, options.random_shift, options.motion_weight)
    torch.set_num_threads(options.threads)
    with WorkProgress(options.cloning.updates, "updates") as progress:
        progress.phase("training the image encoder")
        shown = partial(_show, progress)
        taught = train(student, sampler, options.cloning, int(config.seed), shown)
    torch.set_num_threads(1)
    return taught.vision


def _windows(config: DictConfig, dataset: EpisodeDataset, fields: Sequence[str]) -> WindowSampler:
    """Windows of the successful demonstrations for the configured policy."""
    policy = config.policy
    return WindowSampler.of_dataset(
        dataset,
        int(policy.observation_steps),
        int(policy.horizon),
        fields=fields,
        only_successful=True,
    )


def _untrained(
    config: DictConfig, sampler: WindowSampler, keys: dict[str, int], generator: torch.Generator
) -> ChunkPolicy:
    """Make the configured policy with normalisers that are fitted on the windows' first rows."""
    images = {n: column[:1] for n, column in sampler.arrays.items() if n.startswith("images/")}
    fitted = {
        name: sampler.arrays[name][sampler.indices]
        for name in (*keys, "action")
        if name != FEATURES
    }
    policy = devices.make(
        config.policy,
        arrays=fitted | images,
        keys=keys,
        generator=generator,
        identity=(FEATURES,) if FEATURES in keys else (),
    )
    assert isinstance(policy, ChunkPolicy)
    if config.get("compile", False):
        policy.compile()
    return policy.to(compute_device(config))


def _encoded(dataset: EpisodeDataset, vision: ImageEncoder) -> npt.NDArray[np.float16]:
    """Features (rows, F) of all images of a dataset."""
    episodes = (dataset.episode(index) for index in range(len(dataset)))
    return np.concatenate([vision.encode(columns) for columns in episodes])


def _check_instructions(dataset: EpisodeDataset) -> None:
    """Check that every episode says what it shows.

    Raises:
        RobotRLError: Names the first that does not.
    """
    for index, text in enumerate(dataset.instructions):
        if not text.strip():
            raise RobotRLError(
                "a policy that follows instructions cannot learn from demonstrations without them",
                got=f"episode {index} of {dataset.path} has the instruction {text!r}",
                expected="what it shows, in words",
                hint="record with task.environment.instruction=TEXT, or take another policy",
            )


def _show(progress: WorkProgress, update: int, _: Metrics) -> None:
    progress.update(update)


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
    with directory.claim("train"):
        pretrain(config, directory)
    print(f"written to {directory.path / CLONED}", flush=True)


def create_run(config: DictConfig) -> RunDirectory:
    """Make a run directory with its configuration, once its demonstrations are known to fit."""
    if config.dataset:
        # Absolute: the run is gone on with from other working directories too.
        config.dataset = str(Path(config.dataset).absolute())
        open_demonstrations(config, None)
    directory = RunDirectory.create(config.task.name, config.runs_directory)
    save_resolved(config, directory.path)
    return directory
