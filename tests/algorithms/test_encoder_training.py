"""`observation.vision_online=continued`: the critics' loss goes on training the image encoder."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from algorithm_examples import (
    ACTOR_CRITIC,
    DIMENSION,
    INTERFACE,
    KEYS,
    configuration,
    same,
    weights,
)
from safetensors.torch import load, save

from policies import checkpoint
from policies.behaviour import Behaviour
from policies.columns import FEATURES
from policies.diffusion import DiffusionPolicy
from policies.networks import seeded
from policies.runner import PolicyRunner
from policies.vision import ImageEncoder, observed_keys
from robot_rl.learning.algorithms import make_algorithm
from robot_rl.learning.algorithms.base import AlgorithmError
from robot_rl.learning.algorithms.encoding import trains_on

SIZE = 6
CAMERAS = {"images/front": (12, 16, 3), "images/wrist": (12, 16, 3)}
CONTINUED = {"vision": {}, "vision_online": "continued", "vision_training": {"random_shift": 1}}
# The critics' part ends soon, and each update is of the actor too.
CHANGES = (("schedule.critic_only_updates", 1), ("settings.actor_every", 1))


class Unseeing:
    """An algorithm that leaves the encoding of observations to others."""

    def __init__(self, base, seed):
        pass

    def update(self, batch):
        raise AssertionError("it is refused before")

    to = policy = acting_policy = state_dict = load_state_dict = update


def seeing():
    backbone = {"class": "policies.backbones.SmallConvolutional", "channels": [4, 8]}
    vision = ImageEncoder(CAMERAS, backbone, 7, 5, [0.05, 0.3], 0.004, generator=seeded(0))
    rng = np.random.default_rng(0)
    columns = {name: rng.uniform(-1, 1, (64, width)) for name, width in KEYS.items()}
    columns["action"] = rng.uniform(-0.8, 0.8, (64, DIMENSION))
    policy = DiffusionPolicy.create(
        columns,
        observed_keys(KEYS, vision),
        generator=seeded(1),
        observation_steps=1,
        horizon=4,
        identity=(FEATURES,),
        denoiser={"hidden": [16]},
    )
    return Behaviour(policy, INTERFACE, 2, vision=vision)


def make(choice, behaviour, *changes, observation=CONTINUED, seed=0):
    config = configuration(choice, (*CHANGES, *changes)).algorithm
    return make_algorithm(config, behaviour, seed, observation)


def observations(count, seed=0):
    rng = np.random.default_rng(seed)
    images = {n: rng.integers(0, 256, (count, *s), np.uint8) for n, s in CAMERAS.items()}
    states = {n: rng.uniform(-1, 1, (count, w)).astype("f4") for n, w in KEYS.items()}
    last = rng.uniform(-1, 1, (count, DIMENSION)).astype("f4")
    return {**images, **states, "last_command": last}


def batch(seed):
    rng = np.random.default_rng(seed)
    following = {f"next/{n}": column for n, column in observations(SIZE, seed + 1000).items()}
    actions = rng.uniform(-0.8, 0.8, (3, SIZE, DIMENSION)).astype("f4")
    return {
        **observations(SIZE, seed),
        **following,
        **dict(zip(("action", "base_action", "next/base_action"), actions, strict=True)),
        "reward": (rng.random(SIZE) < 0.3).astype("f4"),
        "discount": np.full(SIZE, 0.9, "f4"),
        "source": (np.arange(SIZE) % 2).astype("u1"),
        "return": np.zeros(SIZE, "f4"),
        "return/valid": np.ones(SIZE, bool),
    }


def train(algorithm, updates, first=0):
    return [
        {name: float(value) for name, value in algorithm.update(batch(number)).items()}
        for number in range(first, first + updates)
    ]


def acts(behaviour, seed=3):
    runner = PolicyRunner(behaviour, 2)
    runner.reset(seeds=[0, 1])
    return runner.act(observations(2, seed))


@pytest.mark.parametrize("choice", ACTOR_CRITIC)
def test_the_critics_loss_trains_the_encoder_that_is_published_saved_and_resumed(choice):
    cloned = seeing()
    before = weights(cloned.policy), weights(cloned.vision)
    algorithm = make(choice, cloned)
    assert FEATURES not in algorithm.required.fields
    assert algorithm.required.fields[0] in observations(1)
    train(algorithm, 3)
    trained = weights(algorithm.encoder.vision)
    assert all(not torch.equal(trained[n], before[1][n]) for n in trained if "weight" in n)
    # The base and what it was cloned on stay as they were.
    assert same(weights(cloned.policy), before[0])
    assert same(weights(cloned.vision), before[1])

    acting = dataclasses.replace(cloned, policy=algorithm.policy(), execute_steps=1)
    received = checkpoint.from_bytes(checkpoint.to_bytes(acting))
    averaged = weights(received.policy.encoder.vision)
    assert not same(averaged, trained)
    assert not same(averaged, before[1])
    assert received.encoder_id == cloned.encoder_id
    assert received.observation == acting.observation
    own = {"last_command": DIMENSION} if choice == "rlpd_gripper" else {}
    assert acting.observation == {**cloned.observation, **own}
    expected = acts(acting)
    np.testing.assert_array_equal(acts(received).action, expected.action)
    # What rows carry is of the frozen encoder, at every version, so a store has one kind of it.
    np.testing.assert_array_equal(expected.features[FEATURES], acts(cloned).features[FEATURES])

    state = load(save(algorithm.state_dict()))
    expected = train(algorithm, 3, first=3)
    resumed = make(choice, cloned, seed=5)
    train(resumed, 2, first=50)  # whatever it was before is gone
    resumed.load_state_dict(state)
    assert train(resumed, 3, first=3) == expected
    assert same(algorithm.state_dict(), resumed.state_dict())


def test_no_other_loss_than_the_critics_moves_the_encoder():
    cloned = seeing()
    algorithm = make("rlpd_pretrained", cloned, ("settings.critic_rate", 0.0))
    actor = weights(algorithm.actor.learned)
    train(algorithm, 4)
    assert not same(weights(algorithm.actor.learned), actor)
    assert same(weights(algorithm.encoder.vision), weights(cloned.vision))


def test_an_encoder_that_was_not_trained_on_yet_sees_what_the_frozen_one_sees():
    cloned = seeing()
    seen = observations(4)
    features = {FEATURES: cloned.vision.encode(seen), **seen}
    with torch.no_grad():
        now = make("residual", cloned).encoder(seen)
        frozen = make("residual", cloned, observation=None).encoder(features)
    torch.testing.assert_close(now, frozen, atol=2e-3, rtol=0)


def test_a_frozen_state_is_no_state_of_an_encoder_that_learns():
    cloned = seeing()
    frozen = make("residual", cloned, observation=None)
    assert FEATURES in frozen.required.fields
    with pytest.raises(AlgorithmError, match="does not fit"):
        make("residual", cloned).load_state_dict(frozen.state_dict())


def test_what_cannot_be_trained_is_said():
    with pytest.raises(AlgorithmError, match=r"not known; got: thawed; expected: frozen or cont"):
        trains_on({**CONTINUED, "vision_online": "thawed"})
    with pytest.raises(AlgorithmError, match=r"needs an image encoder.*next: add observation=pix"):
        trains_on({**CONTINUED, "vision": None})
    assert not trains_on({"vision": {}, "vision_online": None})
    with pytest.raises(AlgorithmError, match="cannot train an image encoder"):
        make_algorithm({"_target_": f"{__name__}.Unseeing"}, seeing(), 0, CONTINUED)
