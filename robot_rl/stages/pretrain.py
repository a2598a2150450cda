"""`robot-rl pretrain`: clone the demonstrations into a policy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from omegaconf import DictConfig

from policies import checkpoint, registry
from policies.behaviour import Behaviour, Interface
from policies.compute import compute_device, explained_memory
from policies.policy import INSTRUCTION, ChunkPolicy
from policies.vision import FEATURES, ImageEncoder, observed_keys
from robot_rl.algorithms.behavior_cloning import train
from robot_rl.algorithms.factory import make_algorithm
from robot_rl.config_overrides import check_least
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.schema import RowSchema
from robot_rl.env.factory import make_env, observed_widths
from robot_rl.errors import RobotRLError
from robot_rl.processes.progress import WorkProgress
from robot_rl.replay.catalogue import is_store
from robot_rl.replay.episode_rows import EpisodeRows
from robot_rl.replay.reader import StoreReader
from robot_rl.rewards.factory import make_source
from robot_rl.run import CLONED, LAST, RunDirectory
from robot_rl.stages.cloning import show, untrained
from robot_rl.stages.dagger import correct
from robot_rl.stages.demonstrations import check_demonstrations, open_demonstrations
from robot_rl.stages.resumable import working_run
from robot_rl.stages.vision import make_image_encoder, train_image_encoder


@explained_memory("lower cloning.batch_size, or add device=cpu")
def pretrain(config: DictConfig, run: RunDirectory) -> Behaviour:
    """Train a policy on the demonstrations and write it to `checkpoints/bc`.

    With cameras their image encoder is trained first, and then frozen: the policy is cloned on its
    features, which are those that replay will keep. In each round of `dagger` an operator corrects
    what was cloned, and it is cloned again from all that was shown.
    """
    torch.set_num_threads(1)
    _require_unused(config, run)
    dataset = open_demonstrations(config, run)
    schema = dataset.schema
    generator = torch.Generator().manual_seed(int(config.seed))
    states = observed_widths(config, schema)
    vision = None
    if config.observation.vision is not None:
        vision = train_image_encoder(config, run, dataset, states, generator)
    behaviour = _clone(config, [dataset], states, vision, generator)
    for number in range(1, int(config.dagger.rounds) + 1):
        corrections = correct(config, run, behaviour, number)
        behaviour = _clone(config, [dataset, *corrections], states, vision, generator)
    _require_unused(config, run)  # by a learner that was started meanwhile
    with run.atomic_folder(CLONED) as folder:
        checkpoint.save(folder / "policy", behaviour)
    return behaviour


def _require_unused(config: DictConfig, run: RunDirectory) -> None:
    """Check that nothing builds on the policy that the run has cloned before.

    Rows in its store hold that policy's proposals, and the features of its image encoder; the
    actors that wait for weights find its own.

    Raises:
        RobotRLError: Something does.
    """
    hint = f"clone into a new run: robot-rl pretrain dataset={config.dataset or run.demonstrations}"
    if run.has_folder(LAST):
        raise RobotRLError(f"{run.path} has learned online from its cloned policy", hint=hint)
    if not run.has_folder(CLONED) or not is_store(run.store):
        return
    reader = StoreReader(run.store)
    tables = sorted(reader.tables())
    reader.close()
    if tables:
        raise RobotRLError(
            f"the store of {run.path} holds rows of its cloned policy", got=tables, hint=hint
        )


def _clone(
    config: DictConfig,
    datasets: Sequence[EpisodeDataset],
    states: dict[str, int],
    vision: ImageEncoder | None,
    generator: torch.Generator,
) -> Behaviour:
    """Train a policy on the successful episodes of some datasets."""
    schema = datasets[0].schema
    # Cameras that the policy itself looks at, with an image encoder of its own.
    cameras = [f"images/{name}" for name in config.policy.get("cameras", ())]
    fields = (*states, *cameras, INSTRUCTION, "action")
    rows = EpisodeRows.of_datasets(datasets, fields, only_successful=True)
    if vision is not None:
        rows.arrays[FEATURES] = np.concatenate([_encoded(d, vision) for d in datasets])
    policy = untrained(config, rows, observed_keys(states, vision), generator)
    if policy.conditioned:
        _check_instructions(datasets[0])
    with WorkProgress(int(config.cloning.updates), "cloning updates") as progress:
        progress.phase("cloning")
        shown = partial(show, progress)
        policy = train(policy, rows, registry.make(config.cloning), int(config.seed), shown)
    return _behaviour(config, policy, schema, vision)


def _behaviour(
    config: DictConfig, policy: ChunkPolicy, schema: RowSchema, vision: ImageEncoder | None
) -> Behaviour:
    return Behaviour(
        policy,
        Interface(schema.task, schema.control_rate_hz, schema.action_names),
        execute_steps=int(config.execute_steps),
        vision=vision,
    )


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


def run(config: DictConfig) -> None:
    """Clone the demonstrations of `run`, or of `dataset` into a new run directory."""
    check_cloning(config)
    if config.run:
        check_demonstrations(config, RunDirectory.open(config.run, config.runs_directory))
    else:
        check_sources(config)
    with working_run(config) as directory, directory.claim("train"):
        pretrain(config, directory)
    print(f"written to {directory.path / CLONED}", flush=True)


def check_cloning(config: DictConfig) -> None:
    """Check what cloning needs of the configuration and of this machine.

    Raises:
        RobotRLError: A number is out of range, or there is no such device.
    """
    numbers = {"cloning.updates": 1, "cloning.batch_size": 1, "dagger.rounds": 0}
    check_least(config, numbers | {"policy.horizon": 1, "policy.observation_steps": 1})
    compute_device(config)


def check_networks(config: DictConfig) -> None:
    """Make the policy and the algorithm once, for rows of zeros: nothing is recorded for neither.

    Raises:
        RobotRLError: One of them cannot be made as it is configured.
    """
    env = make_env(config)
    schema = env.schema
    env.close()
    arrays = {f.name: np.zeros((2, *f.shape), f.dtype) for f in schema.fields}
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        states, vision = observed_widths(config, schema), None
        if config.observation.vision is not None:
            vision = make_image_encoder(config, schema, generator)
            arrays[FEATURES] = np.zeros((2, vision.features), np.float16)
        rows = EpisodeRows(arrays, [2])
        policy = untrained(config, rows, observed_keys(states, vision), generator)
        behaviour = _behaviour(config, policy, schema, vision)
        make_algorithm(config.algorithm, behaviour, int(config.seed), config.observation)


def check_sources(config: DictConfig) -> None:
    """Check what a new run reads from elsewhere, and note where that is from any folder.

    Raises:
        RobotRLError: The demonstrations or the reward's model do not fit, or cannot be read.
    """
    if config.dataset:
        # Resolved: the run is gone on with from other folders too, and will be the latest itself.
        config.dataset = str(Path(config.dataset).resolve())
        check_demonstrations(config, None)
    if "path" in config.reward.source:
        path = Path(config.reward.source.path)
        # But for its last part, which is a link to the newest generation.
        config.reward.source.path = str(path.parent.resolve() / path.name)
    make_source(config)
