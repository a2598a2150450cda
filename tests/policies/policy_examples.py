"""Small policies on invented observations, shared by the tests of this folder."""

from __future__ import annotations

import numpy as np
from untrained_policy import untrained_residual

from policies.behaviour import Behaviour, Interface
from policies.diffusion import DiffusionPolicy
from policies.encoders import StateEncoder
from policies.gaussian import GaussianPolicy, GaussianTanh
from policies.improved import FallbackPolicy
from policies.networks import seeded
from policies.vla_pi0 import create_tiny

KEYS = {"state/tcp_pose": 7, "state/relative": 3}
ACTIONS = ("x", "y", "z")
INTERFACE = Interface("peg_insert", 10.0, ACTIONS)


def observations(count, seed=0):
    """Name → (count, width) float32; most policies use some of them only."""
    source = np.random.default_rng(seed)
    widths = {**KEYS, "last_command": 3}
    return {name: source.normal(size=(count, width)).astype("f4") for name, width in widths.items()}


def recorded(count=200, seed=0):
    """Observations and actions as the normalisers are fitted on."""
    data = observations(count, seed)
    data["action"] = np.random.default_rng(seed + 1).uniform(-0.8, 0.8, (count, 3)).astype("f4")
    return data


def diffusion(seed=0, **options):
    options = {"observation_steps": 2, "horizon": 8, "denoiser": {"hidden": [32]}, **options}
    return DiffusionPolicy.create(recorded(), KEYS, generator=seeded(seed), **options)


def unet(seed=0, **options):
    denoiser = {
        "class": "policies.denoisers.ConditionalUNet",
        "down_dims": [8, 16],
        "embedding": 8,
    }
    return diffusion(seed, denoiser=denoiser, **options)


def transformer(seed=0, **options):
    kind = "policies.denoisers.ConditionalTransformer"
    return diffusion(seed, denoiser={"class": kind, "width": 16, "layers": 1}, **options)


def flow(seed=0, **options):
    return diffusion(seed, **{"process": "policies.processes.flow.Flow", **options})


def improved(seed=0):
    learned = diffusion(seed)
    parts = learned.encoder, learned.process, learned.action_normalizer
    return FallbackPolicy(DiffusionPolicy(*parts, exploration_std=0.2), diffusion(seed + 1))


def gaussian(seed=0, keys=KEYS):
    encoder = StateEncoder(keys).fit(recorded())
    actor = GaussianTanh(encoder.features, 3, [32], generator=seeded(seed), layer_norm=True)
    return GaussianPolicy(encoder, actor)


def residual(seed=0, base=None):
    encoder = StateEncoder(KEYS).fit(recorded())
    base = base or diffusion(seed)
    return untrained_residual(encoder, base, seed, [32])


def vla(seed=0):
    return create_tiny(
        recorded(),
        KEYS,
        generator=seeded(seed),
        horizon=8,
        model={"width": 16, "layers": 1, "heads": 2},
        observation_steps=1,
        tuning={"mode": "full"},
        instruction_tokens=16,
    )


def behaviour(policy, execute_steps=1, version=0):
    return Behaviour(policy, INTERFACE, execute_steps, version=version)


POLICIES = {
    "diffusion": diffusion,
    "diffusion with a U-Net": unet,
    "diffusion with a transformer": transformer,
    "flow": flow,
    "improved": improved,
    "gaussian": gaussian,
    "residual": residual,
    "residual on a flow": lambda: residual(base=flow()),
    "vla": vla,
}
