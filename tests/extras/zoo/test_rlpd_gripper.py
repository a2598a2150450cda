"""The gripper's critic of `rlpd_gripper`: what it learns, and what it refuses."""

import numpy as np
import pytest
import torch
from algorithm_examples import KEYS, SIZE, acts, batch, cloned, configuration, make

from policies.behaviour import Behaviour, Interface
from robot_rl.config import compose
from robot_rl.env.factory import make_env
from robot_rl.learning.algorithms import make_algorithm
from robot_rl.learning.algorithms.base import AlgorithmError

FAST = (
    ("gripper.critic_rate", 0.02),
    ("gripper.penalty", -0.1),
    ("gripper.target_rate", 0.1),
    ("schedule.critic_only_updates", 1000),
)
LAST = "last_command"
POSITION = "state/gripper_position"


def trained(updates, reward_of, changes=FAST, discount=0.0):
    """Train on random commands; `reward_of(told, latest)` gives the rewards of a batch."""
    algorithm = make("rlpd_gripper", changes=changes)
    rng = np.random.default_rng(0)
    for seed in range(updates):
        told = rng.choice([-1.0, 1.0], SIZE)
        latest = rng.choice([-1.0, 1.0], SIZE)
        columns = {
            "action": np.stack([rng.uniform(-1, 1, SIZE), told], 1).astype("f4"),
            "reward": reward_of(told, latest).astype("f4"),
            "discount": np.full(SIZE, discount, "f4"),
            LAST: np.stack([np.zeros(SIZE), latest], 1).astype("f4"),
        }
        algorithm.update(batch(algorithm, seed, **columns))
    return algorithm


def values(algorithm, latest):
    """Mean value of (open, stay, close) where the gripper was told `latest`."""
    rng = np.random.default_rng(3)
    observed = {n: rng.uniform(-1, 1, (SIZE, w)).astype("f4") for n, w in KEYS.items()}
    last = torch.full((SIZE,), float(latest))
    with torch.no_grad():
        return algorithm.gripper_critic(algorithm.encoder(observed), last).mean(0).tolist()


def test_it_learns_to_close_and_that_a_change_costs():
    algorithm = trained(100, lambda told, latest: (told > 0) * 1.0)
    assert values(algorithm, -1) == pytest.approx([0.0, 0.0, 0.9], abs=0.1)
    assert values(algorithm, 1) == pytest.approx([-0.1, 1.0, 1.0], abs=0.1)
    policy = algorithm.policy()
    assert (acts(policy)[0][:, 1] == 1).all()


def test_without_a_reward_it_leaves_the_gripper_alone():
    algorithm = trained(100, lambda told, latest: np.zeros(SIZE))
    for latest, change, keep in ((-1, 2, 0), (1, 0, 2)):
        learned = values(algorithm, latest)
        assert learned[change] == pytest.approx(-0.1, abs=0.04)
        assert learned[keep] == pytest.approx(0.0, abs=0.04)
        assert learned[1] == pytest.approx(0.0, abs=0.04)


def test_the_target_is_double_dqn_within_the_possible_returns():
    """The critic chooses among the next values, the target critic judges its choice."""
    algorithm = make("rlpd_gripper", changes=FAST)
    content = batch(algorithm, reward=np.full(SIZE, 0.25, "f4"))
    content["action"][:, 1] = 1.0
    content[LAST][:] = 1.0  # closed before and after: no penalty, "stay" and "close" alike
    for critic, preferred in (
        (algorithm.gripper_critic, [0.0, 0.0, 2.0]),
        (algorithm.target_gripper_critic, [9.0, 9.0, 0.5]),
    ):
        with torch.no_grad():
            critic.network[-1].weight.zero_()
            critic.network[-1].bias.copy_(torch.tensor(preferred))
    target = 0.25 + 0.9 * 0.5
    expected = (0.0 - target) ** 2 + (2.0 - target) ** 2
    metrics = algorithm.update(content)
    assert float(metrics["gripper_loss"]) == pytest.approx(expected, rel=1e-5)
    assert float(metrics["gripper_moves"]) == 0


def test_returns_without_a_discount_have_no_lower_limit():
    changes = (*FAST, ("schedule.discount", 1.0), ("schedule.critic_only_updates", 0))
    algorithm = make("rlpd_gripper", changes=changes)
    metrics = algorithm.update(batch(algorithm, discount=np.ones(SIZE, "f4")))
    assert all(np.isfinite(float(value)) for value in metrics.values())


def test_a_terminated_transition_does_not_bootstrap():
    algorithm = make("rlpd_gripper", changes=FAST)
    content = batch(algorithm, discount=np.zeros(SIZE, "f4"), reward=np.zeros(SIZE, "f4"))
    content["action"][:, 1] = 1.0
    content[LAST][:] = 1.0
    with torch.no_grad():
        for critic in (algorithm.gripper_critic, algorithm.target_gripper_critic):
            critic.network[-1].weight.zero_()
            critic.network[-1].bias.fill_(0.5)
    assert float(algorithm.update(content)["gripper_loss"]) == pytest.approx(2 * 0.25, rel=1e-5)


def test_rewards_of_any_size_are_told_to_the_gripper_too():
    algorithm = make("rlpd_gripper", changes=FAST, words=["robot=gym"])
    content = batch(algorithm, reward=np.full(SIZE, -1.0, "f4"))
    content["action"][:, 1] = 1.0
    content[LAST][:] = 1.0
    with torch.no_grad():
        for critic in (algorithm.gripper_critic, algorithm.target_gripper_critic):
            critic.network[-1].weight.zero_()
            critic.network[-1].bias.fill_(-20.0)
    expected = 2 * (-20.0 - (-1.0 + 0.9 * -20.0)) ** 2
    assert float(algorithm.update(content)["gripper_loss"]) == pytest.approx(expected, rel=1e-5)


def test_the_arm_learns_as_in_rlpd_whatever_the_gripper_does():
    one, other = make("rlpd_gripper"), make("rlpd_gripper")
    for seed in range(8):
        first, second = batch(one, seed), batch(other, seed)
        second["action"][:, 1] *= -1
        one.update(first)
        other.update(second)
    for mine, same in zip(one.actor.parameters(), other.actor.parameters(), strict=True):
        assert torch.equal(mine, same)


def test_a_task_without_a_gripper_is_refused():
    interface = Interface("reach", 10.0, ("x", "y"))
    config = configuration("rlpd_gripper", ()).algorithm
    with pytest.raises(AlgorithmError, match=r"got: action columns x, y; expected: .*'gripper'"):
        make_algorithm(config, Behaviour(cloned(), interface), 0)


def commanded(opened_to):
    """Rows of pick_cube, closing for 15 steps and then opening, as far as the fingers can."""
    env = make_env(compose(["task=pick_cube"]))
    seen = [env.reset(seed=0)[0]]
    actions = [[0.0, 1.0]] * 15 + [[0.0, -1.0]] * 15
    for _, told in actions:
        action = np.zeros(7, np.float32)
        action[6] = told
        seen.append(env.step(action)[0])
        seen[-1][POSITION] = np.maximum(seen[-1][POSITION], opened_to).astype("f4")
    env.close()
    rows = {name: np.stack([row[name] for row in seen]) for name in (POSITION, LAST)}
    return np.float32(actions), rows | {LAST: rows[LAST][:, [0, 6]]}


@pytest.mark.parametrize("opened_to", [0.0, 0.5], ids=["open", "blocked half open"])
def test_to_open_costs_once_however_long_the_fingers_take(opened_to):
    """They take eight steps to open, or are stopped on their way."""
    algorithm = make("rlpd_gripper", changes=FAST)
    actions, rows = commanded(opened_to)
    columns = {name: values[:-1] for name, values in rows.items()}
    content = batch(algorithm, size=len(actions), **columns, action=actions)
    moves = float(algorithm.update(content)["gripper_moves"]) * len(actions)
    assert moves == pytest.approx(2)  # one to close, one to open


def test_a_gripper_that_is_blocked_while_it_opens_does_not_close_again_by_itself():
    algorithm = trained(100, lambda told, latest: np.zeros(SIZE))  # prefers to change nothing
    policy = algorithm.policy()
    _, rows = commanded(0.5)
    rng = np.random.default_rng(0)
    seen = {name: rng.uniform(-1, 1, (15, width)).astype("f4") for name, width in KEYS.items()}
    seen |= {name: values[-15:] for name, values in rows.items()}
    with torch.no_grad():
        assert (policy.act(seen, None, None)[:, 1] == -1.0).all()
