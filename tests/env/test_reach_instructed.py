"""Two markers, and an instruction that says which."""

import numpy as np
import pytest
from scenes import PERFECT, configuration, environment, expert_episode

from robot_rl.config import Settings
from robot_rl.env.factory import make_expert
from robot_rl.errors import RobotRLError
from robot_rl.learning.stages.clone import Clone
from robot_rl.learning.stages.collect import Collect
from robot_rl.learning.workbench import Workbench
from robot_rl.run import RunDirectory

TASK = "reach_instructed"
COLOURS = ("red", "blue")


def test_the_instruction_names_the_marker_that_is_rewarded():
    env = environment(TASK, *PERFECT)
    expert = make_expert(configuration(f"task={TASK}", *PERFECT), env)
    named = []
    for seed in range(8):
        _, steps = expert_episode(env, expert, seed)
        assert steps[-1].terminated
        distances = np.linalg.norm(steps[-1].observation["state/relative_positions"], axis=1)
        colour = COLOURS[int(distances.argmin())]
        assert env.task.instruction == f"move the gripper to the {colour} marker"
        named.append(colour)
    assert set(named) == set(COLOURS)


def test_the_other_marker_is_not_rewarded_and_nothing_observed_tells_which():
    env, other = environment(TASK, *PERFECT), environment(TASK, *PERFECT)
    expert = make_expert(configuration(f"task={TASK}", *PERFECT), env)
    expert.reset(np.random.default_rng(0))
    observation, _ = env.reset(seed=0)
    other.reset(seed=0)
    env.task._named = 1 - env.task._named  # the same scene with the other wish
    same = env.task.observe()
    for name, value in same.items():
        np.testing.assert_array_equal(value, observation[name])
    while True:
        action = expert.act(np.random.default_rng(0))
        (_, reward, right, late, _), elsewhere = env.step(action), other.step(action)
        assert not late
        if right:
            break
        assert not elsewhere[2]
    assert reward == 1.0
    # The same motion is a failure where the other marker was named, and ends the episode.
    assert elsewhere[1:4] == (0.0, True, False)
    assert not elsewhere[4]["success"]


def test_who_tries_both_markers_fails_as_often_as_who_guesses():
    env = environment(TASK, *PERFECT)
    succeeded = []
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        over = False
        while not over:
            ways = observation["state/relative_positions"]
            nearest = ways[np.linalg.norm(ways, axis=1).argmin()]
            action = np.concatenate([np.clip(nearest / 0.01, -1, 1), np.zeros(3)])
            observation, _, ended, late, info = env.step(action.astype(np.float32))
            over = ended or late
        succeeded.append(info["success"])
    assert 5 <= sum(succeeded) <= 15


def test_each_demonstration_keeps_its_own_instruction(tmp_path):
    config = configuration(f"task={TASK}", "demonstrations=5")
    bench = Workbench(Settings.of(config), RunDirectory(tmp_path))
    Collect(bench.settings).run(bench)
    dataset = bench.demonstrations()
    env = environment(TASK)
    for seed, text in zip(dataset.seeds, dataset.instructions, strict=True):
        env.reset(seed=int(seed))
        assert text == env.task.instruction
    assert len(set(dataset.instructions)) == 2


def test_demonstrations_without_instructions_cannot_teach_to_follow_them(tmp_path):
    config = configuration(
        "task=reach", "task.environment.instruction=''", "policy=vla_tiny", "demonstrations=1"
    )
    bench = Workbench(Settings.of(config), RunDirectory(tmp_path))
    Collect(bench.settings).run(bench)
    with pytest.raises(RobotRLError, match=r"got: episode 0 of .* instruction ''.*next: record"):
        Clone(bench.settings).run(bench)


def test_a_task_without_a_choice_is_refused():
    with pytest.raises(RobotRLError, match="two colours and an instruction that names one"):
        environment(TASK, "task.environment.instruction='move to the marker'")
