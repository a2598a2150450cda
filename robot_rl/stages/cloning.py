"""What the training of a policy and that of its image encoder share."""

from __future__ import annotations

import torch
from omegaconf import DictConfig

from policies import registry
from policies.compute import compute_device
from policies.policy import ChunkPolicy
from policies.vision import FEATURES
from robot_rl.algorithms.behavior_cloning import Metrics
from robot_rl.processes.progress import WorkProgress
from robot_rl.replay.episode_rows import EpisodeRows


def untrained(
    config: DictConfig, rows: EpisodeRows, keys: dict[str, int], generator: torch.Generator
) -> ChunkPolicy:
    """Make the configured policy with normalisers fitted on the rows that have an action."""
    images = {n: column[:1] for n, column in rows.arrays.items() if n.startswith("images/")}
    fitted = {
        name: rows.arrays[name][rows.indices] for name in (*keys, "action") if name != FEATURES
    }
    policy = registry.make(
        config.policy,
        arrays=fitted | images,
        keys=keys,
        generator=generator,
        identity=(FEATURES,) if FEATURES in keys else (),
    )
    assert isinstance(policy, ChunkPolicy)
    if config.compile:
        policy.compile()
    return policy.to(compute_device(config))


def show(progress: WorkProgress, update: int, _: Metrics) -> None:
    """Show how far a training is."""
    progress.update(update)
