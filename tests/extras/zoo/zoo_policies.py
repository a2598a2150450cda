"""Small policies of the zoo on invented observations."""

from __future__ import annotations

from policy_examples import KEYS, diffusion, recorded

from policies.encoders import StateEncoder
from policies.gaussian import GaussianTanh
from policies.networks import seeded
from robot_rl.extras.zoo.gripper import GaussianGripperPolicy, GripperCritic
from robot_rl.extras.zoo.latent import LatentPolicy


def latent(seed=0):
    policy = diffusion(seed)
    width = policy.horizon * policy.action_dimension
    actor = GaussianTanh(policy.encoder.features, width, [16], generator=seeded(seed))
    return LatentPolicy(policy, actor, 1.5)


def gripper(seed=0, exploration=0.3):
    encoder = StateEncoder(KEYS).fit(recorded())
    actor = GaussianTanh(encoder.features, 2, [32], generator=seeded(seed))
    critic = GripperCritic(encoder.features, [32], generator=seeded(seed + 1))
    return GaussianGripperPolicy(encoder, actor, critic, 2, exploration)
