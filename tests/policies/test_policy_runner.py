"""The runner: chunks, take-over, hand-back, weights, seeds and labels."""

import dataclasses

import numpy as np
import pytest
import torch
from policy_examples import (
    ACTIONS,
    behaviour,
    diffusion,
    gaussian,
    observations,
    residual,
    vla,
)

from policies.columns import INSTRUCTION_FEATURES, Plan, instruction_features
from policies.diffusion import DiffusionPolicy
from policies.errors import PolicyError
from policies.runner import PolicyRunner
from robot_rl.config import compose
from robot_rl.data.policy_columns import stored_schema
from robot_rl.data.schema import Field, row_schema
from robot_rl.learning.algorithms import make_algorithm

EXECUTE = 4


def episode(length, seed=0):
    """One recorded observation per step, (length, ...)."""
    return observations(length, seed)


def at(recording, step):
    return {name: value[step : step + 1] for name, value in recording.items()}


def follow(runner, recording, steps):
    return [runner.act(at(recording, step)) for step in steps]


def started(policy=None, seed=5, **options):
    runner = PolicyRunner(behaviour(policy or diffusion(), EXECUTE, **options))
    runner.reset(seeds=[seed])
    return runner


def first_planned(policy, history, seed=5):
    """The first action (1, d) of an episode's first plan, from the parts alone."""
    source = np.random.default_rng(np.random.SeedSequence(seed).spawn(2)[0])
    noise = torch.from_numpy(source.standard_normal((1, *policy.noise_shape), np.float32))
    with torch.inference_mode():
        return policy.plan(history, noise).actions[:, 0].numpy()


def test_a_chunk_is_executed_in_part_and_then_planned_anew():
    policy = diffusion()
    runner = started(policy)
    recording = episode(9)
    acted = follow(runner, recording, range(9))
    assert [int(a.chunk_index[0]) for a in acted] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    # The third plan sees the observations 7 and 8.
    same_start = started(policy)
    changed = {name: value.copy() for name, value in recording.items()}
    for value in changed.values():
        value[5:7] += 1.0
    again = follow(same_start, changed, range(9))
    for step in range(9):
        np.testing.assert_array_equal(again[step].action, acted[step].action)


def test_the_first_observation_is_its_own_history():
    policy = diffusion()
    runner = started(policy)
    recording = episode(1)
    action = runner.act(at(recording, 0)).action
    history = {name: value[None].repeat(2, 1) for name, value in recording.items()}
    np.testing.assert_array_equal(first_planned(policy, history), action)


def test_what_was_observed_during_an_override_counts():
    results = []
    for change in (0.0, 1.0):
        runner = started()
        recording = episode(4)
        recording["state/relative"][2] += change
        for step in range(3):
            assert runner.act(at(recording, step)).base_action.any()  # it is asked all the same
            runner.observe_override()
        results.append(runner.act(at(recording, 3)).action)
    assert not np.array_equal(*results)


def test_a_reset_empties_queue_and_history():
    """After a truncation in mid-chunk the next episode is as if nothing had been before."""
    fresh = started(seed=7)
    used = started(seed=6)
    follow(used, episode(6, seed=3), range(6))
    used.reset(seeds=[7])
    recording = episode(6)
    for mine, other in zip(
        follow(used, recording, range(6)), follow(fresh, recording, range(6)), strict=True
    ):
        np.testing.assert_array_equal(mine.action, other.action)
        np.testing.assert_array_equal(mine.chunk_index, other.chunk_index)


@pytest.mark.parametrize("mode", ["mean", "sample", "base"])
def test_an_episode_does_not_depend_on_who_else_is_in_the_batch(mode):
    running = behaviour(residual(), EXECUTE).exploring(mode, "normal", 0.1)
    alone = PolicyRunner(running)
    alone.reset(seeds=[11])
    together = PolicyRunner(running, 3)
    together.reset(seeds=[9, 10, 11])
    for step in range(10):
        batch = observations(3, seed=step)
        active = np.array([step % 2 == 0, step < 5, True])
        acted = together.act(batch, active)
        mine = alone.act({name: value[2:] for name, value in batch.items()})
        np.testing.assert_allclose(acted.action[2], mine.action[0], atol=1e-5)
        assert not acted.action[~active].any()


def test_inactive_slots_are_not_planned_for():
    policy = diffusion()
    batches = []
    plan = policy.plan

    def counted(observation, noise):
        batches.append(len(noise))
        return plan(observation, noise)

    policy.plan = counted
    runner = PolicyRunner(behaviour(policy, EXECUTE), 5)
    runner.reset(seeds=range(5))
    runner.act(observations(5), np.array([True, False, True, False, False]))
    runner.act(observations(5), np.zeros(5, bool))
    runner.act(observations(5))
    assert batches == [2, 3]  # one call for all that need it, and only for those


def test_new_weights_wait_for_the_end_of_the_chunk():
    runner = started(version=1)
    recording = episode(12)
    follow(runner, recording, [0, 1])
    runner.set_behaviour(behaviour(diffusion(1), EXECUTE, version=2))
    acted = follow(runner, recording, range(2, 6))
    assert [int(a.version[0]) for a in acted] == [1, 1, 2, 2]
    assert [int(a.chunk_index[0]) for a in acted] == [2, 3, 0, 1]


def test_new_weights_come_in_at_an_episode_boundary_and_after_an_override():
    runner = started(version=1)
    recording = episode(4)
    follow(runner, recording, [0])
    runner.set_behaviour(behaviour(diffusion(1), EXECUTE, version=2))
    runner.reset(seeds=[1])
    assert runner.act(at(recording, 0)).version[0] == 2
    runner.set_behaviour(behaviour(diffusion(2), EXECUTE, version=3))
    runner.observe_override()
    assert runner.act(at(recording, 1)).version[0] == 3


def test_without_chunks_every_step_is_a_boundary():
    runner = PolicyRunner(behaviour(gaussian(), version=1))
    runner.reset(seeds=[0])
    recording = episode(3)
    runner.act(at(recording, 0))
    runner.set_behaviour(behaviour(gaussian(1), version=2))
    acted = runner.act(at(recording, 1))
    assert (acted.version[0], acted.chunk_index[0]) == (2, 0)
    assert not acted.base_action.any()


def test_slots_in_mid_chunk_keep_their_weights_while_others_switch():
    old, new = behaviour(diffusion(), EXECUTE, 1), behaviour(diffusion(1), EXECUTE, 2)
    runner = PolicyRunner(old, 2)
    runner.reset(seeds=[0, 1])
    runner.act(observations(2))
    runner.set_behaviour(new)
    runner.reset([1], seeds=[2])
    acted = runner.act(observations(2, 1))
    assert acted.version.tolist() == [1, 2]
    assert acted.chunk_index.tolist() == [1, 0]
    only_new = PolicyRunner(new)
    only_new.reset(seeds=[2])
    alone = only_new.act({name: value[1:] for name, value in observations(2, 1).items()})
    np.testing.assert_allclose(acted.action[1], alone.action[0], atol=1e-5)


def test_from_warm_up_with_the_base_to_a_gaussian():
    """The diffusion policy collects first; later weights are of another kind."""
    runner = PolicyRunner(behaviour(diffusion(), EXECUTE).exploring("mean", "normal", 0.05))
    runner.reset(seeds=[0])
    recording = episode(10)
    acted = follow(runner, recording, [0, 1])
    assert (acted[0].action != acted[0].base_action).any()
    runner.set_behaviour(behaviour(gaussian(), 1, version=9).exploring("sample"))
    assert [int(a.version[0]) for a in follow(runner, recording, range(2, 6))] == [0, 0, 9, 9]


def test_new_weights_may_see_more_and_farther_back():
    runner = PolicyRunner(behaviour(gaussian(keys={"state/relative": 3})))
    runner.reset(seeds=[5])
    recording = episode(3)
    follow(runner, recording, [0, 1])
    policy = diffusion()
    runner.set_behaviour(behaviour(policy, EXECUTE, version=2))
    acted = runner.act(at(recording, 2))
    assert acted.version[0] == 2
    # What had been kept counts; of what had not, the present observation is the history.
    history = {name: value[None, [1, 2]] for name, value in recording.items()}
    history["state/tcp_pose"] = history["state/tcp_pose"][:, [1, 1]]
    np.testing.assert_array_equal(acted.action, first_planned(policy, history))


def test_other_actions_are_refused_at_once():
    runner = started()
    other = behaviour(diffusion())
    renamed = dataclasses.replace(other.interface, action_names=("x", "y", "rz"))
    with pytest.raises(PolicyError, match="action_names differs"):
        runner.set_behaviour(dataclasses.replace(other, interface=renamed))


def test_exploration_adds_bounded_noise_to_the_base():
    policy = residual()
    for noise, limit in (("uniform", 0.2), ("none", 0.0)):
        runner = PolicyRunner(behaviour(policy, EXECUTE).exploring("base", noise, 0.2), 50)
        runner.reset(seeds=range(50))
        acted = runner.act(observations(50))
        difference = np.abs(acted.action - acted.base_action).max()
        assert difference <= limit + 1e-6
        assert difference >= 0.9 * limit
        assert np.abs(acted.action).max() <= 1


def test_in_some_episodes_the_base_acts_alone():
    """An episode's seed decides, and every step says how it came about."""
    exploring = behaviour(residual(), EXECUTE).exploring("sample", "normal", 0.2, 0.25)
    runner = PolicyRunner(exploring, 200)
    runner.reset(seeds=range(200))
    first, second = runner.act(observations(200)), runner.act(observations(200, seed=1))
    np.testing.assert_array_equal(first.base_alone, second.base_alone)
    assert np.mean(first.base_alone) == pytest.approx(0.25, abs=0.1)
    departs = (first.action != first.base_action).any(axis=1)
    np.testing.assert_array_equal(departs, ~first.base_alone)
    alone = PolicyRunner(exploring)
    alone.reset(seeds=[17])
    mine = alone.act({name: value[17:18] for name, value in observations(200).items()})
    assert mine.base_alone[0] == first.base_alone[17]


def test_in_some_episodes_the_policy_acts_without_noise():
    policy = residual()
    exploring = behaviour(policy, EXECUTE).exploring("sample", base_share=0.2, mean_share=0.3)
    runner, plain = PolicyRunner(exploring, 200), PolicyRunner(behaviour(policy, EXECUTE), 200)
    for each in (runner, plain):
        each.reset(seeds=range(200))
    acted, mean = runner.act(observations(200)), plain.act(observations(200))
    assert np.mean(acted.noiseless & ~acted.base_alone) == pytest.approx(0.3, abs=0.1)
    assert acted.noiseless[acted.base_alone].all()
    learned = acted.noiseless & ~acted.base_alone
    np.testing.assert_array_equal(acted.action[learned], mean.action[learned])
    departs = (acted.action != mean.action).any(axis=1)
    assert np.mean(departs[~acted.noiseless]) > 0.2  # elsewhere the correction is not preferred


def test_the_mean_of_an_untrained_residual_is_its_base():
    runner = started(residual())
    for acted in follow(runner, episode(6), range(6)):
        np.testing.assert_array_equal(acted.action, acted.base_action)


@pytest.mark.parametrize("length", [2, 4, 5])
def test_the_final_observation_gets_its_true_base_action(length):
    """As if the episode had gone on; and asking changes nothing."""
    recording = episode(8)
    asked, unasked = started(), started()
    follow(asked, recording, range(length))
    follow(unasked, recording, range(length))
    proposal = asked.conclude(at(recording, length)).base_action
    assert np.array_equal(asked.conclude(at(recording, length)).base_action, proposal)
    for step in range(length, 8):
        mine, other = asked.act(at(recording, step)), unasked.act(at(recording, step))
        np.testing.assert_array_equal(mine.action, other.action)
        if step == length:
            np.testing.assert_array_equal(other.base_action, proposal)


def test_labels_are_what_the_runner_would_have_proposed():
    policy = residual()
    recording = episode(11)
    runner = PolicyRunner(behaviour(policy, EXECUTE).exploring("sample"))
    runner.reset(seeds=[3])
    deployed = np.concatenate([a.base_action for a in follow(runner, recording, range(11))])
    labels = runner.label(recording, 3)
    assert labels.shape == (11, 3)
    assert labels.dtype == np.float32
    np.testing.assert_allclose(labels, deployed, atol=1e-5)


def test_what_learned_on_top_of_a_conditioned_policy_is_told_the_instruction():
    """When the warm-up with the cloned policy ended, the actor did; a new one did not start."""
    cloned = behaviour(vla(), EXECUTE)
    algorithm = make_algorithm(compose(["algorithm=rlpd"]).algorithm, cloned, 0)
    learned = behaviour(algorithm.policy(), version=1)
    told = []
    for first in (cloned, learned):
        runner = PolicyRunner(first, 2)
        runner.reset(seeds=[1, 2], instructions=["go left", "go right"])
        runner.act(observations(2))
        runner.set_behaviour(learned)
        runner.reset(seeds=[3, 4], instructions=["go left", "go right"])
        acted = runner.act(observations(2))
        assert (acted.version == 1).all()
        concluded = runner.conclude(observations(2)).features
        np.testing.assert_array_equal(concluded[INSTRUCTION_FEATURES], told_of(acted))
        told.append(told_of(acted))
    np.testing.assert_array_equal(told[0], instruction_features(["go left", "go right"]))
    np.testing.assert_array_equal(told[0], told[1])
    schema = row_schema("reach", [Field("state/relative", "float32", (3,))], ACTIONS, 10.0)
    assert stored_schema(schema, learned) == stored_schema(schema, cloned) != schema


def told_of(acted):
    return acted.features[INSTRUCTION_FEATURES]


def test_misuse_is_explained():
    runner = PolicyRunner(behaviour(diffusion(), EXECUTE), 2)
    with pytest.raises(PolicyError, match=r"slot 0 has no episode.*reset"):
        runner.act(observations(2))
    with pytest.raises(PolicyError, match="one seed per slot is needed; got: 1; expected: 2"):
        runner.reset(seeds=[1])
    runner.reset(seeds=[1, 2])
    with pytest.raises(PolicyError, match="lacks 'state/relative'"):
        runner.act({"state/tcp_pose": np.zeros((2, 7), "f4")})
    with pytest.raises(PolicyError, match=r"'state/tcp_pose' has another shape; got: \(3, 7\)"):
        runner.act(observations(3))
    runner.act(observations(2))  # and it goes on
    wrong = {**observations(2), "state/relative": np.zeros((2, 4), "f4")}
    with pytest.raises(PolicyError, match=r"expected: \(2, 3\)"):
        runner.act(wrong)


def test_a_policy_that_sees_one_step_is_shown_what_was_observed_uncopied():
    policy, seen = gaussian(keys={"state/relative": 3}), []
    act = policy.act

    def watched(observation, *arguments):
        seen.append(observation["state/relative"])
        return act(observation, *arguments)

    policy.act = watched
    runner = PolicyRunner(behaviour(policy))
    runner.reset(seeds=[5])
    memory = observations(1)
    runner.act(memory)
    assert seen[0].shape == (1, 1, 3)
    assert np.shares_memory(seen[0], memory["state/relative"])


def test_what_was_observed_is_kept_though_the_next_comes_in_the_same_memory():
    recording, policy = episode(2), diffusion()
    memory = at({name: value.copy() for name, value in recording.items()}, 0)
    runner = PolicyRunner(behaviour(gaussian()))
    runner.reset(seeds=[5])
    runner.act(memory)
    for name, value in memory.items():
        value[:] = recording[name][1]
    runner.set_behaviour(behaviour(policy, EXECUTE, version=2))
    history = {name: value[None] for name, value in recording.items()}
    np.testing.assert_array_equal(runner.act(memory).action, first_planned(policy, history))


BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "1e+39": 1e39, "dtype object": None}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("step", [0, 2, EXECUTE])
@pytest.mark.parametrize("make", [diffusion, residual])
def test_an_observation_that_is_not_finite_is_refused_and_the_next_action_is_planned_anew(
    make, bad, step
):
    runner, recording = started(make()), episode(EXECUTE + 3)
    follow(runner, recording, range(step))
    name = next(iter(runner.behaviour.policy.observation))
    broken = at(recording, step)
    broken[name] = broken[name].astype(object if BAD[bad] is None else np.float64)
    broken[name][0, -1] = BAD[bad]
    with pytest.raises(PolicyError, match=f"'{name}' is not finite") as refused:
        runner.act(broken)
    assert bad in str(refused.value)
    acted = runner.act(at(recording, step))
    assert np.isfinite(acted.action).all()
    assert acted.chunk_index[0] == 0


def test_what_no_policy_sees_may_be_anything():
    runner, recording = started(), episode(1)
    seen = {**at(recording, 0), "state/unused": np.full((1, 3), np.nan)}
    assert np.isfinite(runner.act(seen).action).all()


class Strange(DiffusionPolicy):
    """A policy of somebody's own whose plans are not what it declares."""

    made = staticmethod(lambda plan: plan)

    def plan(self, observation, noise):
        return Plan(self.made(super().plan(observation, noise).actions))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda plan: plan[:, :2], r"another shape.*got: \(1, 2, 3\).*expected: \(1, 8, 3\)"),
        (lambda plan: plan[0], r"another shape.*got: \(8, 3\)"),
        (lambda plan: plan[..., :1], r"another shape"),
        (lambda plan: plan * np.nan, "not finite.*got: nan"),
    ],
)
def test_a_plan_that_cannot_be_executed_is_refused_in_a_sentence(made, said):
    policy = diffusion()
    policy.__class__ = Strange
    policy.made = made
    with pytest.raises(PolicyError, match=f"(?s)Strange made plans.*{said}"):
        follow(started(policy), episode(1), [0])
