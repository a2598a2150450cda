"""Small algorithms from the real configurations, and invented batches for them."""

from functools import cache

import numpy as np
import torch

from policies.behaviour import Behaviour, Interface
from policies.diffusion import DiffusionPolicy
from policies.policy import ChunkPolicy
from robot_rl.config import compose, flatten, group_choices
from robot_rl.learning.algorithms import make_algorithm

CHOICES = group_choices()["algorithm"]
GENERATIVE = tuple(
    choice
    for choice in CHOICES
    if "exploration_std" in compose([f"algorithm={choice}"]).algorithm.settings
)
ACTOR_CRITIC = tuple(choice for choice in CHOICES if choice not in GENERATIVE)
# Whose critics learn from the target critics' values of what would be done next.
BOOTSTRAPPING = tuple(
    choice
    for choice in CHOICES
    if choice not in ("filtered_cloning", "advantage_weighted", "best_of_n", "denoising_ppo")
)
KEYS = {"state/pose": 3, "state/speed": 2, "state/gripper_position": 1}
INTERFACE = Interface("lift", 10.0, ("x", "gripper"))
DIMENSION = 2
SIZE = 32
CRITIC_ONLY = 3

SMALL = {
    "schedule.critic_only_updates": CRITIC_ONLY,
    "settings.critic_heads": 3,
    "settings.executed_steps": 1,
    "settings.critic_hidden": "[32,32]",
    "settings.imitation_updates": 50,
    "settings.actor_hidden": "[32]",
    "gripper.hidden": "[32]",
}


@cache
def configuration(choice, changes, words=()):
    chosen = [f"algorithm={choice}", *words]
    known = flatten(compose(chosen).algorithm)
    values = {**SMALL, **dict(changes)}
    overrides = [f"algorithm.{key}={value}" for key, value in values.items() if key in known]
    return compose([*chosen, *overrides])


def cloned(**process):
    rng = np.random.default_rng(0)
    columns = {name: rng.uniform(-1, 1, (64, width)) for name, width in KEYS.items()}
    columns["action"] = rng.uniform(-0.8, 0.8, (64, DIMENSION))
    generator = torch.Generator().manual_seed(0)
    options = {"observation_steps": 1, "steps": 2, "denoiser": {"hidden": [16]}, **process}
    return DiffusionPolicy.create(columns, KEYS, generator=generator, **options)


def make(choice, seed=0, changes=(), base=None, words=()):
    """Make an algorithm.

    `changes` are pairs of a key below `algorithm` and its value, `words` further overrides.
    """
    config = configuration(choice, tuple(changes), tuple(words))
    return make_algorithm(config.algorithm, Behaviour(base or cloned(), INTERFACE), seed)


def batch(algorithm, seed=0, size=SIZE, **columns):
    """What the sampler gives for the fields that the algorithm requires, and nothing more."""
    rng = np.random.default_rng(seed)
    known = {
        **{name: rng.uniform(-1, 1, (size, width)).astype("f4") for name, width in KEYS.items()},
        "action": rng.uniform(-1, 1, (size, DIMENSION)).astype("f4"),
        "base_action": rng.uniform(-0.8, 0.8, (size, DIMENSION)).astype("f4"),
    }
    following = {f"next/{name}": rng.permutation(known[name]) for name in (*KEYS, "base_action")}
    known["last_command"] = rng.uniform(-1, 1, (size, DIMENSION)).astype("f4")
    following["next/last_command"] = known["action"].copy()
    known |= {
        "reward": (rng.random(size) < 0.3).astype("f4"),
        "discount": np.full(size, 0.9, "f4"),
        "source": (np.arange(size) % 2).astype("u1"),
    }
    spec = algorithm.required
    known["plan/latent"] = rng.uniform(-1, 1, (size, DIMENSION * spec.horizon)).astype("f4")
    known |= columns
    required = {*spec.fields, "reward", "discount", "source"}
    content = {name: known[name] for name in required}
    content |= {k: v for k, v in following.items() if k.removeprefix("next/") in required}
    if spec.observation_steps:
        seen = [name for name in content if name.removeprefix("next/") in KEYS]
        content |= {n: np.repeat(content[n][:, None], spec.observation_steps, 1) for n in seen}
    if spec.chunk_fields:
        content["chunk/action"] = np.repeat(known["action"][:, None], spec.horizon, 1)
        content["chunk/valid"] = np.ones((size, spec.horizon), bool)
    if spec.returns:
        content |= {"return": known["reward"].copy(), "return/valid": known["reward"] > 0}
    return content


def train(algorithm, updates, first=0):
    """Metrics of some updates on batches that follow from their number."""
    return [
        {name: float(value) for name, value in algorithm.update(batch(algorithm, seed)).items()}
        for seed in range(first, first + updates)
    ]


def weights(policy):
    return {name: value.clone() for name, value in policy.state_dict().items()}


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def acts(policy, count=SIZE, noise=None):
    """The policy's actions on fixed observations and base actions, and those base actions."""
    rng = np.random.default_rng(9)
    seen = {name: rng.uniform(-1, 1, (count, width)).astype("f4") for name, width in KEYS.items()}
    seen["last_command"] = np.ones((count, DIMENSION), np.float32)
    base = torch.from_numpy(rng.uniform(-0.8, 0.8, (count, DIMENSION)).astype("f4"))
    with torch.no_grad():
        if isinstance(policy, ChunkPolicy):
            seen = {name: column[:, None] for name, column in seen.items() if name in KEYS}
            drawn = torch.Generator().manual_seed(0)
            policy = policy if noise is None else getattr(policy, "exploring", policy)
            noise = torch.randn((count, *policy.noise_shape), generator=drawn)
            return policy.plan(seen, noise).actions[:, 0], base
        return policy.act(seen, base, noise), base
