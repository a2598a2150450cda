"""Stage `Clone`: behaviour cloning of the demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from policies import registry
from policies.behaviour import Behaviour, Interface
from policies.columns import FEATURES, INSTRUCTION
from policies.compute import compute_device, explained_memory
from policies.policy import ChunkPolicy
from policies.vision import ImageEncoder, observed_keys
from robot_rl.config import Settings, composed
from robot_rl.config.sections import Part
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.schema import RowSchema
from robot_rl.env.factory import make_env, observed_widths
from robot_rl.env.gym import GymRobot
from robot_rl.errors import RobotRLError, in_shell
from robot_rl.evaluation.records import PolicyInputs
from robot_rl.learning.algorithms import make_algorithm
from robot_rl.learning.algorithms.behavior_cloning import CloningOptions, Student, fit, windows
from robot_rl.learning.recipe import Stage
from robot_rl.learning.symmetry import Turning, turning_of
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.replay.catalogue import is_store
from robot_rl.replay.row_sources import EpisodeRows
from robot_rl.replay.store_reader import StoreReader
from robot_rl.run import CLONED, DEMONSTRATIONS, LAST, VISION, RunDirectory

POSE = "state/tcp_pose"  # an image encoder learns motion from it


class Clone(Stage):
    """Clones the demonstrations. With cameras, it uses the same features as replay."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.makes = (CLONED,) if settings.demonstrated else ()

    @property
    def needs(self) -> Sequence[str]:
        """Return the demonstrations, and with cameras their encoder."""
        compute_device(self.settings.device)
        return (DEMONSTRATIONS, VISION) if self.settings.sees else (DEMONSTRATIONS,)

    def done(self, run: RunDirectory, *, recorded: bool) -> bool:
        """Return whether a cloned policy exists."""
        return run.has_folder(CLONED)

    def run(self, bench: Workbench) -> None:
        """Train and save."""
        check_unused(bench.run, self.settings.dataset)
        vision = bench.policy(VISION).vision if self.settings.sees else None
        save_cloned(bench, clone(bench, [bench.demonstrations()], vision, bench.generator()))


@explained_memory("lower cloning.batch_size, or add device=cpu")
def clone(
    bench: Workbench,
    datasets: Sequence[EpisodeDataset],
    vision: ImageEncoder | None,
    generator: torch.Generator,
    before: ChunkPolicy | None = None,
    left_out: npt.NDArray[np.bool_] | None = None,
) -> Behaviour:
    """Train a policy on the successful episodes of some datasets, without rows `left_out` (n,).

    With a trained image encoder as `vision`, the policy uses its features. The generator draws the
    initial weights. With a policy `before`, training starts from its weights and normalisers
    instead.
    """
    torch.set_num_threads(1)
    settings, schema = bench.settings, datasets[0].schema
    states = observed_widths(settings.environment, schema)
    # Cameras that the policy reads through its own image encoder.
    cameras = [f"images/{name}" for name in settings.policy.get("cameras", ())]
    fields = (*states, *cameras, INSTRUCTION, "action")
    rows = EpisodeRows.of_datasets(datasets, fields, only_successful=True, left_out=left_out)
    if vision is not None:
        episodes = (dataset.episode(at) for dataset in datasets for at in range(len(dataset)))
        rows.arrays[FEATURES] = np.concatenate([vision.encode(columns) for columns in episodes])
    keys = observed_keys(states, vision)
    policy = untrained(settings, rows, keys, generator) if before is None else before
    for index, text in enumerate(datasets[0].instructions) if policy.conditioned else ():
        if not text.strip():
            raise RobotRLError(
                "a policy that follows instructions cannot learn from demonstrations without them",
                got=f"episode {index} of {datasets[0].path} has the instruction {text!r}",
                expected="what it shows, in words",
                hint="record with task.environment.instruction=TEXT, or take another policy",
            )
    options = registry.make(settings.cloning, CloningOptions)
    turning = turning_of(settings.environment, policy.cloning_fields, schema)
    policy = fit_with_progress(policy, rows, options, settings.seed, "cloning", turning)
    return behaviour_of(policy, schema, settings.execute_steps, vision)


def fit_with_progress(
    student: Student,
    rows: EpisodeRows,
    options: CloningOptions,
    seed: int,
    words: str,
    turning: Turning | None = None,
) -> Student:
    """`fit` a student to windows of the rows and show progress. All draws use the seed."""
    sample = windows(student, rows, options.batch_size, np.random.default_rng(seed), turning)
    draws = torch.Generator().manual_seed(seed)
    with WorkProgress(options.updates, f"{words} updates") as progress:
        progress.phase(words)
        return fit(student, sample, options, draws, lambda update, _: progress.update(update))


def save_cloned(bench: Workbench, behaviour: Behaviour) -> None:
    """Write the cloned policy of a run, unless an earlier one is in use."""
    check_unused(bench.run, bench.settings.dataset)  # by a learner started in the meantime
    bench.checkpoint(CLONED, behaviour)


def check_unused(run: RunDirectory, dataset: str | None) -> None:
    """Check that the run's previous cloned policy is not in use.

    Rows in the store hold that policy's proposals and its image encoder's features, and actors may
    run its weights.

    Raises:
        RobotRLError: The policy is in use.
    """
    word = f"dataset={dataset or run.demonstrations}"
    hint = f"clone into a new run: {in_shell('robot-rl', 'pretrain', word)}"
    if run.has_folder(LAST):
        raise RobotRLError(f"{run.path} has learned online from its cloned policy", hint=hint)
    if not run.has_folder(CLONED) or not is_store(run.store):
        return
    with closing(StoreReader(run.store)) as reader:
        empty = reader.empty
    if not empty:
        raise RobotRLError(f"the store of {run.path} holds rows of its cloned policy", hint=hint)


def untrained(
    settings: Settings, rows: EpisodeRows, keys: dict[str, int], generator: torch.Generator
) -> ChunkPolicy:
    """Create the configured policy, with normalisers fitted on the rows that have an action."""
    images = {n: column[:1] for n, column in rows.arrays.items() if n.startswith("images/")}
    identity = [name for name in keys if name == FEATURES]
    names = [name for name in (*keys, "action") if name != FEATURES]
    arrays = {name: rows.arrays[name][rows.indices] for name in names} | images
    given = {"arrays": arrays, "keys": keys, "generator": generator, "identity": identity}
    policy = registry.make(settings.policy, ChunkPolicy, **given)
    if settings.compile:
        policy.compile()
    return policy.to(compute_device(settings.device))


def make_image_encoder(
    observation: Part, schema: RowSchema, generator: torch.Generator
) -> ImageEncoder:
    """Create an untrained `observation` image encoder for a schema's cameras or point clouds.

    With a `motion_weight` of 0 it does not estimate the remaining motion.
    """
    parts: dict[str, Any] = {"cameras": {**schema.colour_cameras, **schema.point_clouds}}
    motion_weight = observation["vision_training"]["motion_weight"]
    if not motion_weight:
        parts["motion_scale"] = None
    elif POSE not in (f.name for f in schema.fields):
        raise RobotRLError(
            f"the image encoder is to learn motion from {POSE}, which is not observed",
            got=f"observation.vision_training.motion_weight={motion_weight}",
            hint="add observation.vision_training.motion_weight=0"
            " observation.vision_training.exploration_episodes=0",
        )
    return registry.make(observation["vision"], ImageEncoder, generator=generator, **parts)


def behaviour_of(
    policy: ChunkPolicy, schema: RowSchema, execute_steps: int, vision: ImageEncoder | None = None
) -> Behaviour:
    """Create the behaviour of a policy trained on rows of this schema."""
    return Behaviour(
        policy,
        Interface(schema.task, schema.control_rate_hz, schema.action_names),
        execute_steps=execute_steps,
        vision=vision,
    )


def check_networks(settings: Settings) -> PolicyInputs:
    """Create the policy and the algorithm once, for rows of zeros, before any recording starts.

    Returns the inputs of the policy.

    Raises:
        RobotRLError: The configuration is invalid for one of them, or does not fit the symmetry.
    """
    behaviour, schema, inputs = _tried_policy(settings)
    with torch.random.fork_rng(devices=[]):
        algorithm = make_algorithm(settings.algorithm, behaviour, settings.seed)
    assert isinstance(behaviour.policy, ChunkPolicy)
    fields = (*behaviour.policy.cloning_fields, *algorithm.required.fields)
    turning_of(settings.environment, fields, schema)
    return inputs


def check_policy(settings: Settings) -> PolicyInputs:
    """Like `check_networks`, but only for the policy."""
    return _tried_policy(settings)[2]


def _tried_policy(settings: Settings) -> tuple[Behaviour, RowSchema, PolicyInputs]:
    """Return the policy for rows of zeros, their schema, and the policy's inputs.

    Raises `RobotRLError` if `observation` has cameras but the policy uses none of them. Cameras
    only for storing images are allowed, unless the robot's own images are stored anyway or the
    cameras replace the object poses in the policy's input.
    """
    with closing(make_env(settings.environment)) as env:
        schema, own_pictures = env.schema, isinstance(env.robot, GymRobot)
    with torch.random.fork_rng(devices=[]):
        behaviour = for_zeros(settings, schema)
    inputs = PolicyInputs.of(behaviour.observation, schema)
    choice = settings.choices["observation"]
    needless = own_pictures or not settings.observation["task_state"]
    if needless and not inputs.pictures and composed([f"observation={choice}"]).observation.cameras:
        raise RobotRLError(
            f"observation={choice} is there for pictures, and the policy would see none",
            got=str(inputs),
            hint="take observation=pixels, or a policy that itself sees pictures, such as"
            " policy=vla policy.cameras=[NAME]; observation=state is for numbers alone",
        )
    return behaviour, schema, inputs


def for_zeros(settings: Settings, schema: RowSchema) -> Behaviour:
    """Create the configured policy, untrained, for rows of zeros."""
    arrays = {f.name: np.zeros((2, *f.shape), f.dtype) for f in schema.fields}
    generator, vision = torch.Generator().manual_seed(0), None
    if settings.sees:
        vision = make_image_encoder(settings.observation, schema, generator)
        arrays[FEATURES] = np.zeros((2, vision.features), np.float16)
    keys = observed_keys(observed_widths(settings.environment, schema), vision)
    if not keys:
        raise RobotRLError(
            f"with observation={settings.choices['observation']} the policy sees nothing",
            got=f"observation.states={settings.observation['states']}, without an image encoder",
            expected=f"some of {', '.join(schema.observation_names)}",
            hint="observation=pixels lets it see pictures",
        )
    policy = untrained(settings, EpisodeRows(arrays, [2]), keys, generator)
    return behaviour_of(policy, schema, settings.execute_steps, vision)
