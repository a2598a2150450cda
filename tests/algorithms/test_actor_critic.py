"""What the actor-critic algorithms compute, and that they learn."""

import numpy as np
import pytest
import torch
from algorithm_examples import (
    ACTOR_CRITIC,
    BOOTSTRAPPING,
    CHOICES,
    CRITIC_ONLY,
    DIMENSION,
    SIZE,
    acts,
    batch,
    cloned,
    make,
    same,
    train,
    weights,
)

from robot_rl.config import Settings, compose
from robot_rl.learning.algorithms import check_algorithm
from robot_rl.learning.algorithms.base import AlgorithmError

HEADS = 3
_EVERY_DAY = ("residual", "action_gradient")


@pytest.mark.parametrize("choice", [name for name in CHOICES if name.startswith("residual")])
def test_a_residual_starts_as_its_base_and_explores_around_it(choice):
    algorithm = make(choice)
    policy = algorithm.policy()
    action, base = acts(policy)
    assert torch.equal(action, base)
    train(algorithm, CRITIC_ONLY)
    assert torch.equal(*acts(algorithm.acting_policy()))
    noise = torch.randn(SIZE, DIMENSION, generator=torch.Generator().manual_seed(0))
    explored, base = acts(algorithm.acting_policy(), noise=noise)
    assert 0 < float((explored - base).abs().mean()) < 0.5


def mean(algorithm):
    width = algorithm.encoder.features + DIMENSION
    inputs = torch.randn(SIZE, width, generator=torch.Generator().manual_seed(0))
    return algorithm.actor.learned.mean(inputs).detach()


def test_corrections_begin_again_at_the_base_and_critics_keep_what_they_know():
    algorithm = make("residual")
    train(algorithm, CRITIC_ONLY + 6)
    assert not torch.equal(mean(algorithm), torch.zeros(SIZE, DIMENSION))
    known = weights(algorithm.critics.network)
    algorithm.reset_actor()
    assert torch.equal(*acts(algorithm.policy()))
    assert torch.equal(mean(algorithm), torch.zeros(SIZE, DIMENSION))
    assert same(weights(algorithm.critics.network), known)
    train(algorithm, 2, first=6)
    assert not torch.equal(mean(algorithm), torch.zeros(SIZE, DIMENSION))


def constant(critics, value):
    with torch.no_grad():
        for parameter in critics.parameters():
            parameter.zero_()
        critics.network.biases[-1].fill_(value)


def squared_target(algorithm, next_value, reward, discount):
    """The TD target, from the loss of critics that are zero before targets that are constant."""
    constant(algorithm.critics.network, 0.0)
    constant(algorithm.critics.target, next_value)
    columns = {"reward": np.full(SIZE, reward, "f4"), "discount": np.full(SIZE, discount, "f4")}
    metrics = algorithm.update(batch(algorithm, **columns))
    return float(metrics["critic_loss"]) / HEADS


@pytest.mark.parametrize("choice", BOOTSTRAPPING)
def test_a_terminated_transition_does_not_bootstrap_and_a_truncated_one_does(choice):
    plain = [("settings.entropy_in_target", "false"), ("settings.value_range", "[0.0,1.0]")]
    ended = squared_target(make(choice, changes=plain), 0.5, reward=0.3, discount=0.0)
    assert ended == pytest.approx(0.3**2, rel=1e-5)
    going_on = squared_target(make(choice, changes=plain), 0.5, reward=0.3, discount=0.9)
    assert going_on == pytest.approx((0.3 + 0.9 * 0.5) ** 2, rel=1e-5)


@pytest.mark.parametrize("choice", BOOTSTRAPPING)
@pytest.mark.parametrize(("value", "limited"), [(7.0, 1.0), (-7.0, 0.0), (0.4, 0.4)])
def test_targets_keep_to_the_range_of_possible_returns(choice, value, limited):
    plain = [("settings.entropy_in_target", "false"), ("settings.value_range", "[0.0,1.0]")]
    got = squared_target(make(choice, changes=plain), value, reward=0.0, discount=0.9)
    assert got == pytest.approx((0.9 * limited) ** 2, rel=1e-5)


@pytest.mark.parametrize("choice", BOOTSTRAPPING)
@pytest.mark.parametrize(
    ("words", "limited", "low", "width"),
    [
        (["robot=gym"], -7.0, 0.0, 1.0),
        (["robot=gym", "task.value_range=[-5,0]"], -5.0, -5.0, 5.0),
        (["robot=gym_hil"], 0.0, 0.0, 1.0),
    ],
)
def test_critics_tell_shares_of_the_range_of_returns(choice, words, limited, low, width):
    """A reward of -1 a step taught nothing: every value was taken for 0."""
    plain = [("settings.entropy_in_target", "false")]
    got = squared_target(make(choice, changes=plain, words=words), -7.0, reward=-1.0, discount=0.9)
    target = (-1.0 + 0.9 * limited - low) / width
    assert got == pytest.approx(target**2, rel=1e-5)


@pytest.mark.parametrize("given", ["[1.0,0.0]", "[0.0,0.0]", "[nan,1.0]", "[0.0]", "5", "high"])
def test_an_impossible_range_of_returns_is_refused(given):
    with pytest.raises(AlgorithmError, match=r"range of values is impossible.*low < high"):
        make("rlpd", words=["robot=gym", f"task.value_range={given}"])


@pytest.mark.parametrize("choice", ACTOR_CRITIC)
def test_targets_with_entropy_are_not_limited_to_returns(choice):
    """Near a bound the limit cut the entropy off, as if it had not been asked for."""
    changes = [
        ("settings.entropy_in_target", "true"),
        ("settings.value_range", "[0.0,1.0]"),
        ("settings.initial_temperature", 1e-6),
    ]
    got = squared_target(make(choice, changes=changes), -7.0, reward=0.0, discount=0.9)
    assert got == pytest.approx((0.9 * 7.0) ** 2, rel=1e-3)


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("settings.actor_every", 0, ">= 1"),
        ("settings.critic_heads", 0, ">= 1"),
        ("settings.target_heads", -1, "0 to 6"),
        ("settings.target_heads", 8, "0 to 6"),
        ("settings.critic_rate", -0.001, "0 to 1"),
        ("settings.initial_temperature", 0.0, ">= 1e-09"),
        ("settings.imitation_updates", -1, ">= 0"),
        ("schedule.n_step", 0, ">= 1"),
        ("schedule.discount", 1.5, "0 to 1"),
        ("schedule.demonstration_share", -0.1, "0 to 1"),
        ("gripper.penalty", 0.02, "<= 0"),
        ("gripper.exploration", 1.5, "0 to 1"),
    ],
)
def test_a_setting_out_of_range_is_named(setting, value, expected):
    name = setting.split(".")[1]
    config = compose(["algorithm=rlpd_gripper", f"algorithm.{setting}={value}"])
    with pytest.raises(AlgorithmError, match=f"'{name}' is .*{value}.*{expected}"):
        check_algorithm(Settings.of(config))


@pytest.mark.parametrize("choice", ACTOR_CRITIC)
def test_the_critic_only_phase_leaves_the_actor_alone(choice):
    algorithm = make(choice)
    before = weights(algorithm.actor.learned), weights(algorithm.actor.average)
    train(algorithm, CRITIC_ONLY)
    untouched = same(weights(algorithm.actor.learned), before[0])
    assert untouched != algorithm.settings.imitation_pretraining
    assert same(weights(algorithm.actor.average), before[1]) == untouched
    train(algorithm, 2)
    assert not same(weights(algorithm.actor.learned), before[0])


@pytest.mark.parametrize(("target_entropy", "direction"), [(5.0, 1), (-20.0, -1)])
def test_the_temperature_rises_while_there_is_less_entropy_than_wanted(target_entropy, direction):
    algorithm = make("rlpd", changes=[("settings.target_entropy", target_entropy)])
    before = float(algorithm.actor.log_temperature)
    train(algorithm, CRITIC_ONLY + 4)
    assert (float(algorithm.actor.log_temperature) - before) * direction > 0


@pytest.mark.parametrize("choice", ACTOR_CRITIC)
def test_the_deployed_policy_is_the_average_of_the_acting_one(choice):
    rate = 0.25
    algorithm = make(choice, changes=[("settings.average_rate", rate), ("settings.actor_every", 1)])
    train(algorithm, CRITIC_ONLY)
    average = weights(algorithm.actor.average)
    for update in range(3):
        train(algorithm, 1, first=update)
        acting = weights(algorithm.acting_policy().actor)
        deployed = weights(algorithm.policy().actor)
        for name, value in average.items():
            torch.testing.assert_close(deployed[name], value.lerp(acting[name], rate))
        assert not same(acting, deployed)
        average = deployed


@pytest.mark.parametrize("choice", BOOTSTRAPPING)
def test_target_critics_follow_slowly(choice):
    algorithm = make(choice, changes=[("settings.target_rate", 0.25)])
    before = weights(algorithm.critics.target)
    train(algorithm, 1)
    critics, after = weights(algorithm.critics.network), weights(algorithm.critics.target)
    for name, value in before.items():
        torch.testing.assert_close(after[name], value.lerp(critics[name], 0.25))


def demonstrations(algorithm, seed, source):
    """Rows in which every demonstrated action is (0.4, -0.4)."""
    columns = {
        "action": np.tile(np.float32([0.4, -0.4]), (SIZE, 1)),
        "source": np.full(SIZE, source, "u1"),
    }
    return batch(algorithm, seed, **columns)


def test_the_pretrained_actor_goes_to_the_demonstrations():
    algorithm = make("rlpd_pretrained", changes=[("schedule.critic_only_updates", 300)])
    losses = [
        float(algorithm.update(demonstrations(algorithm, seed, 0))["imitation_loss"])
        for seed in range(300)
    ]
    assert losses[-1] < 0.2 * losses[0]
    chosen, _ = acts(algorithm.policy())
    assert float((chosen - torch.tensor([0.4, -0.4])).abs().mean()) < 0.2


def test_other_rows_are_not_imitated():
    algorithm = make("rlpd_pretrained")
    before = weights(algorithm.actor.learned)
    metrics = algorithm.update(demonstrations(algorithm, 0, 1))
    assert float(metrics["imitation_loss"]) == 0.0
    assert same(weights(algorithm.actor.learned), before)


@pytest.mark.parametrize(("updates", "matters"), [(1000, True), (1, False)])
def test_the_pull_towards_demonstrations_ends(updates, matters):
    changes = (
        ("schedule.critic_only_updates", 0),
        ("settings.imitation_updates", updates),
        ("settings.actor_every", 2),
    )
    actors = []
    for source in (0, 1):
        algorithm = make("rlpd_pretrained", changes=changes)
        for seed in range(2):
            algorithm.update(demonstrations(algorithm, seed, source))
        actors.append(weights(algorithm.actor.learned))
    assert same(*actors) != matters


# Noise steers a clone only to what that may do. One of each kind is quick enough for every day.
@pytest.mark.parametrize(
    "choice",
    [
        pytest.param(choice, marks=[] if choice in _EVERY_DAY else pytest.mark.slow)
        for choice in BOOTSTRAPPING
        if not choice.startswith("dsrl")
    ],
)
def test_the_actor_learns_which_action_is_rewarded(choice):
    """A bandit: reward 1 where the first action column is above 0.2, whatever is seen."""
    changes = (
        ("settings.critic_rate", 0.003),
        ("settings.actor_rate", 0.003),
        ("settings.average_rate", 0.05),
        ("settings.imitation_weight", 0.0),
        ("settings.imitation_pretraining", "false"),
    )
    algorithm = make(choice, changes=changes)
    before, _ = acts(algorithm.policy())
    rng = np.random.default_rng(0)
    for seed in range(250):
        action = rng.uniform(-1, 1, (SIZE, DIMENSION)).astype("f4")
        reward = (action[:, 0] > 0.2).astype("f4")
        columns = {"action": action, "reward": reward, "discount": np.zeros(SIZE, "f4")}
        algorithm.update(batch(algorithm, seed, **columns))
    after, _ = acts(algorithm.policy())
    rewarded_before = float((before[:, 0] > 0.2).float().mean())
    rewarded_after = float((after[:, 0] > 0.2).float().mean())
    assert rewarded_before < 0.6
    assert rewarded_after > rewarded_before + 0.2  # a residual reaches 0.7: it is bounded
    assert float((after - before)[:, 0].mean()) > 0.2


def test_value_flows_back_from_the_end():
    """Two states in a row, reward at the end of the second: Q is 1 there and γ before."""
    algorithm = make(
        "rlpd", changes=[("settings.critic_rate", 0.01), ("settings.target_rate", 0.1)]
    )
    half = SIZE // 2
    first, second = np.float32([-1, 0, 0]), np.float32([1, 0, 0])
    pose = np.concatenate([np.tile(first, (half, 1)), np.tile(second, (half, 1))])
    reward = np.repeat(np.float32([0, 1]), half)
    columns = {"reward": reward, "discount": np.repeat(np.float32([0.8, 0]), half)}
    for seed in range(250):
        content = batch(algorithm, seed, **columns, **{"state/pose": pose})
        content["next/state/pose"] = np.tile(second, (SIZE, 1))
        algorithm.update(content)
    with torch.no_grad():
        features = algorithm.encoder({name: content[name] for name in algorithm.encoder.keys})
        values = algorithm.critics(torch.cat([features, torch.from_numpy(content["action"])], -1))
    assert float(values[:, :half].mean()) == pytest.approx(0.8, abs=0.1)
    assert float(values[:, half:].mean()) == pytest.approx(1.0, abs=0.1)


def test_the_encoder_has_the_statistics_of_the_cloned_policy():
    base = cloned()
    for choice in CHOICES:
        algorithm = make(choice, base=base)
        policy = algorithm.policy()
        assert policy.encoder.keys == base.encoder.keys
        assert same(weights(policy.encoder), weights(base.encoder))
