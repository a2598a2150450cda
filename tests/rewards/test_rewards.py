"""The wrapper in the actor: whose word counts, when an episode ends, and what the rows see."""

import numpy as np
import pytest
from reward_scenes import CONFIG, After, inbox, outcome, play, rewarded
from scripted_device import HandheldDevice

from robot_rl.env.factory import make_env
from robot_rl.env.input_device import TeleopInput
from robot_rl.env.session import Session
from robot_rl.env.task import Outcome
from robot_rl.rewards.source import (
    DistanceReward,
    HumanReward,
    PoseReward,
    RewardError,
    SuccessReward,
    TaskReward,
)


def test_the_tasks_own_reward_is_handed_on_bit_by_bit():
    inner, env = rewarded(TaskReward())
    judged = play(inner, env)
    alone = play(inner, inner)
    assert [step[:3] for step in judged] == [step[:3] for step in alone]


def test_the_source_decides_and_the_tasks_success_is_only_noted():
    inner, env = rewarded(After(1000))
    steps = play(inner, env)
    assert any(info["task_success"] for *_, info in steps)
    assert len(steps) == inner.task.time_limit_steps
    assert [(r, t) for r, t, *_ in steps] == [(0.0, False)] * len(steps)
    assert [truncated for _, _, truncated, _ in steps] == [False] * (len(steps) - 1) + [True]
    judged = {"operator_success": None, "detector_success": False}
    assert env.result.facts == {**judged, "task_success": True, "reward_alarm": None}

    steps = play(*rewarded(After(3)))
    assert len(steps) == 3
    reward, terminated, truncated, info = steps[-1]
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert not info["task_success"]
    assert info["reward_version"] == 70_000


@pytest.mark.parametrize("source", [TaskReward(), HumanReward(), After(1000)])
@pytest.mark.parametrize("success", [True, False])
def test_a_label_ends_the_episode_at_the_next_tick_whatever_the_source(source, success):
    said = inbox()

    def label(step):
        if step == 4:
            said.post("success" if success else "failure")

    inner, env = rewarded(source, said)
    steps = play(inner, env, before_step=label)
    assert len(steps) == 5
    assert env.result.facts["operator_success"] is success
    assert env.result.facts.get("detector_success", False) is False
    reward, terminated, truncated, info = steps[-1]
    assert (reward, terminated, truncated) == (float(success), True, False)
    assert (info["success"], info["reward_version"]) == (success, 1)


@pytest.mark.parametrize("event", ["stop", "pause", "reset", "discard"])
def test_the_operator_ends_an_episode_that_the_source_lets_go_on_at_the_tasks_goal(event):
    said = inbox()
    inner, env = rewarded(After(1000), said)
    reached = []

    def end_it_there(step):
        if env.result.facts["task_success"] and not reached:
            reached.append(step)
            said.post(event)

    steps = play(inner, env, before_step=end_it_there)
    *_, (_, terminated, truncated, info) = steps
    assert (len(steps), terminated, truncated) == (reached[0] + 1, False, True)
    assert info["task_success"]


def test_a_label_between_two_episodes_is_about_the_one_before():
    said = inbox()
    inner, env = rewarded(After(3), said)
    said.post("success")  # before the first episode: about none
    play(inner, env)
    said.post("success")
    said.post("failure")  # a second thought
    assert env.reset(seed=0)[1]["late_label"] is False
    assert env.reset(seed=0)[1]["late_label"] is None


def test_a_label_pressed_during_a_reset_is_about_the_episode_before(monkeypatch):
    device, said = HandheldDevice(events={"enter": "success"}), inbox()
    inner = make_env(CONFIG)
    env = Session(inner, said, devices=[TeleopInput(device, said)], source=After(3))
    play(inner, env)
    moved = inner.robot.reset

    def press_meanwhile(*args):
        device.pressed.add("enter")
        moved(*args)

    monkeypatch.setattr(inner.robot, "reset", press_meanwhile)
    assert env.reset(seed=0)[1]["late_label"] is True


def test_what_is_there_for_the_source_alone_is_hidden():
    class Looks(After):
        observed = ("state/tcp_velocity",)

        def judge(self, observation, task):
            assert "state/tcp_velocity" in observation
            return super().judge(observation, task)

    _, env = rewarded(Looks(2), hidden=["state/tcp_velocity"])
    observation, _ = env.reset(seed=0)
    stepped, *_ = env.step(np.zeros(6, np.float32))
    names = [f.name for f in env.schema.fields]
    for shown in (observation, stepped, names):
        assert "state/tcp_velocity" not in shown
        assert "state/tcp_pose" in shown


def test_a_source_that_needs_a_camera_says_so_when_there_is_none():
    class Looks(After):
        observed = ("images/wrist",)

    _, env = rewarded(Looks(2))
    with pytest.raises(RewardError, match=r"images/wrist.*reward\.cameras"):
        env.reset(seed=0)


def test_a_pose_counts_after_enough_steps_within_the_tolerances():
    def at(x, turn=0.0):
        half = turn / 2
        return {"state/tcp_pose": np.array([x, 0, 0.1, 0, 0, np.sin(half), np.cos(half)], "f4")}

    source = PoseReward([0.5, 0, 0.1, 0, 0, 0, 1], [0.01, 0.01, 0.01], 0.1, steps=2)
    source.reset(at(0.4))
    seen = [at(0.5), at(0.52), at(0.5, 0.2), at(0.505), at(0.495, 0.09)]
    verdicts = [source.judge(observation, outcome()) for observation in seen]
    assert [v.success for v in verdicts] == [False, False, False, False, True]
    assert (verdicts[-1].reward, verdicts[-1].terminated) == (1.0, True)
    source.reset(at(0.5))
    assert not source.judge(at(0.5), outcome()).success
    with pytest.raises(RewardError, match="unit quaternion"):
        PoseReward([0.5, 0, 0.1, 0, 0, 0, 2], [0.01, 0.01, 0.01], 0.1)


def test_coming_nearer_is_rewarded_beside_the_success_that_the_task_sees():
    def left(*numbers):
        return {"state/relative_pose": np.array(numbers, "f4")}

    source = DistanceReward("state/relative_pose", [0.1, 0.5])
    source.reset(left(0.2, 0.0))
    steps = [(left(0.1, 0.0), outcome()), (left(0.0, -1.0), outcome())]
    steps.append((left(0.0, 0.0), outcome(terminated=True, success=True)))
    verdicts = [source.judge(*step) for step in steps]
    assert [v.reward for v in verdicts] == pytest.approx([1.0, -1.0, 3.0])
    assert [v.success for v in verdicts] == [False, False, True]
    with pytest.raises(RewardError, match=r"expected: 3 numbers; next: set reward\.source\.scale"):
        source.reset(left(0.0, 0.0, 0.0))


def test_success_alone_replaces_a_shaped_reward_and_ends_the_episode():
    source = SuccessReward()
    near, done = outcome()._replace(reward=7.5), Outcome(10.0, False, False, True)
    assert source.judge({}, near) == (0.0, False, False, False)
    assert source.judge({}, done) == (1.0, True, False, True)
    assert source.judge({}, outcome(terminated=True)) == (0.0, True, False, False)


def test_a_task_that_gives_up_ends_the_episode_without_reward():
    source = HumanReward()
    assert source.judge({}, outcome(terminated=True)) == (0.0, True, False, False)
    assert source.judge({}, outcome(success=True)) == (0.0, False, False, False)
