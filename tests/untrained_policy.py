"""A policy that has learned nothing, but acts in chunks, for the tests of what surrounds one."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import torch

from policies.behaviour import Behaviour, Interface
from policies.critics import CriticEnsemble
from policies.diffusion import DiffusionPolicy
from policies.gaussian import GaussianTanh
from policies.improved import ResidualPolicy
from policies.networks import seeded


def untrained(schema, largest=1.0, keys=MappingProxyType({"state/relative_pose": 6})):
    """A behaviour for an environment's schema, with chunks of 4 actions of up to `largest`."""
    source = np.random.default_rng(0)
    columns = {name: source.uniform(-1, 1, (9, n)).astype("f4") for name, n in keys.items()}
    actions = source.uniform(-largest, largest, (9, len(schema.action_names)))
    policy = DiffusionPolicy.create(
        {**columns, "action": actions.astype("f4")},
        dict(keys),
        generator=torch.Generator().manual_seed(0),
        denoiser={"hidden": [8]},
    )
    interface = Interface(schema.task, schema.control_rate_hz, schema.action_names)
    return Behaviour(policy, interface, execute_steps=4)


def untrained_residual(encoder, base, seed=0, hidden=(256, 256), scale=0.5):
    """A residual that equals its base."""
    width, generator = base.action_dimension, seeded(seed)
    seen = encoder.features + width
    actor = GaussianTanh(seen, width, hidden, generator=generator, zero_last_layer=True)
    critics = CriticEnsemble(seen + width, (128, 128), 6, generator)
    return ResidualPolicy(encoder, actor, base, critics, scale)
