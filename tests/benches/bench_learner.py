"""How long one update takes on one thread."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from omegaconf import DictConfig

from policies.behaviour import Behaviour, Interface
from policies.diffusion import DiffusionPolicy
from policies.networks import seeded
from policies.vision import observed_keys
from robot_rl.config import compose
from robot_rl.env.factory import make_env, observed_widths
from robot_rl.learning.algorithms import make_algorithm
from robot_rl.learning.stages.clone import make_image_encoder

_UPDATES = 200
_WARM_UP = 20
# The size that the figures of other stacks are for: every part updated every time.
_REFERENCE = (
    "algorithm=rlpd",
    "algorithm.settings.critic_heads=2",
    "algorithm.settings.critic_hidden=[256,256]",
    "algorithm.settings.target_heads=0",
    "algorithm.settings.actor_every=1",
    "algorithm.settings.actor_layer_norm=false",
    "algorithm.schedule.critic_only_updates=0",
    "algorithm.schedule.batch_size=256",
)


def run(config: DictConfig) -> dict[str, object]:
    """Measure the median time of an update; batches are in memory already.

    Returns:
        `state_update_ms`: full `rlpd` update, 2 critics, actor and temperature, MLP 256x256,
        batch 256. `configured_update_ms`: the configured algorithm, mean over its actor's turns.
        `cached_feature_update_ms`: the same on the cached features of two cameras, batch 256.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {
            "state_update_ms": _measure(compose([f"task={config.choices.task}", *_REFERENCE])),
            "configured_update_ms": _measure(config),
            "cached_feature_update_ms": _measure(compose(_pixels(config))),
            "algorithm": config.choices.algorithm,
        }
    finally:
        torch.set_num_threads(threads)


def _pixels(config: DictConfig) -> list[str]:
    names = ("task", "algorithm")
    return [*(f"{name}={config.choices[name]}" for name in names), "observation=pixels"]


def _measure(config: DictConfig) -> float:
    rng = np.random.default_rng(0)
    env = make_env(config)
    widths = observed_widths(config, env.schema)
    vision = None
    if config.observation.vision is not None:
        vision = make_image_encoder(config.observation, env.schema, seeded(0))
    widths = observed_keys(widths, vision)
    env.close()
    dimension = env.schema.action_dimension
    size = int(config.algorithm.schedule.batch_size)
    columns = {
        name: rng.standard_normal((size, width), np.float32) for name, width in widths.items()
    }
    action = rng.uniform(-1, 1, (size, dimension)).astype(np.float32)
    base = DiffusionPolicy.create({**columns, "action": action}, widths, generator=seeded(0))
    interface = Interface(config.task.name, float(config.control_rate_hz), env.schema.action_names)
    cloned = Behaviour(base, interface, vision=vision)
    algorithm = make_algorithm(config.algorithm, cloned, seed=0)
    batch = _batch(columns, action, rng)
    critic_only = int(config.algorithm.schedule.critic_only_updates)
    for _ in range(critic_only + _WARM_UP):
        algorithm.update(batch)
    times = []
    for _ in range(_UPDATES):
        started = time.perf_counter()
        algorithm.update(batch)
        times.append(time.perf_counter() - started)
    pairs = np.add(times[::2], times[1::2]) / 2  # one of two updates has the actor's turn
    return float(np.median(pairs)) * 1e3


def _batch(
    columns: Mapping[str, npt.NDArray[Any]],
    action: npt.NDArray[np.float32],
    rng: np.random.Generator,
) -> dict[str, npt.NDArray[Any]]:
    size = len(action)
    return {
        **columns,
        **{f"next/{name}": column for name, column in columns.items()},
        "action": action,
        "base_action": action,
        "next/base_action": action,
        "reward": (rng.random(size) < 0.05).astype(np.float32),
        "discount": np.full(size, 0.97, np.float32),
        "source": (np.arange(size) % 2).astype(np.uint8),
    }
