"""What the training of a policy and that of its image encoder share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from omegaconf import DictConfig

from policies import registry
from policies.compute import compute_device
from policies.policy import ChunkPolicy
from policies.vision import FEATURES
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.windows import WindowSampler
from robot_rl.learning.algorithms.behavior_cloning import Metrics
from robot_rl.processes.progress import WorkProgress


def windows(
    config: DictConfig, datasets: Sequence[EpisodeDataset], fields: Sequence[str]
) -> WindowSampler:
    """Windows of the successful demonstrations of some datasets for the configured policy."""
    policy = config.policy
    return WindowSampler.of_datasets(
        datasets,
        int(policy.observation_steps),
        int(policy.horizon),
        fields=fields,
        only_successful=True,
    )


def untrained(
    config: DictConfig, sampler: WindowSampler, keys: dict[str, int], generator: torch.Generator
) -> ChunkPolicy:
    """Make the configured policy with normalisers that are fitted on the windows' first rows."""
    images = {n: column[:1] for n, column in sampler.arrays.items() if n.startswith("images/")}
    fitted = {
        name: sampler.arrays[name][sampler.indices]
        for name in (*keys, "action")
        if name != FEATURES
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
