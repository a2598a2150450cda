"""The simulated arm: kinematics, impedance control, anti-wind-up, limits and hold."""

import numpy as np
import pytest
from scenes import configuration, environment
from scipy.spatial.transform import Rotation

from policies import registry
from robot_rl.env.task import Task
from robot_rl.errors import RobotRLError

REST = np.zeros(6, np.float32)
UP = np.array([0, 0, 1, 0, 0, 0], np.float32)
FORWARD = np.array([1, 0, 0, 0, 0, 0], np.float32)


def started(task, seed, *overrides):
    env = environment(task, *overrides)
    observation, _ = env.reset(seed=seed)
    return env, observation


def run(env, action, steps):
    return [env.step(action)[0] for _ in range(steps)]


def panda_forward_kinematics(joints):
    """Craig's DH parameters of the Franka Control Interface documentation, hand and TCP added."""
    a = [0, 0, 0, 0.0825, -0.0825, 0, 0.088]
    d = [0.333, 0, 0.316, 0, 0.384, 0, 0]
    alpha = [0, -np.pi / 2, np.pi / 2, np.pi / 2, -np.pi / 2, np.pi / 2, np.pi / 2]
    pose = np.eye(4)
    for theta, length, offset, twist in zip(joints, a, d, alpha, strict=True):
        step = np.eye(4)
        step[:3, :3] = (
            Rotation.from_euler("x", twist) * Rotation.from_euler("z", theta)
        ).as_matrix()
        step[:3, 3] = [length, -np.sin(twist) * offset, np.cos(twist) * offset]
        pose = pose @ step
    tool = np.eye(4)
    tool[:3, :3] = Rotation.from_euler("z", -np.pi / 4).as_matrix()
    tool[2, 3] = 0.107 + 0.1034
    return pose @ tool


def test_kinematics_are_the_pandas():
    env, observation = started("reach", 0)
    rng = np.random.default_rng(0)
    for _ in range(20):
        expected = panda_forward_kinematics(observation["state/joint_positions"])
        pose = observation["state/tcp_pose"]
        np.testing.assert_allclose(pose[:3], expected[:3, 3], atol=2e-6)
        turn = Rotation.from_quat(pose[3:]) * Rotation.from_matrix(expected[:3, :3]).inv()
        assert turn.magnitude() < 1e-5
        observation, *_ = env.step(rng.uniform(-1, 1, 6).astype(np.float32))


def test_velocities_are_the_change_of_the_poses():
    env, _ = started("reach", 0, "control_rate_hz=500.0")
    turning = np.array([0.02, -0.01, 0.01, 0.02, 0.01, -0.02], np.float32)
    before, after = run(env, turning, 40)[-2:]
    middle = 0.5 * (before["state/tcp_velocity"] + after["state/tcp_velocity"])
    moved = after["state/tcp_pose"][:3].astype(float) - before["state/tcp_pose"][:3]
    turned = (
        Rotation.from_quat(after["state/tcp_pose"][3:])
        * Rotation.from_quat(before["state/tcp_pose"][3:]).inv()
    )
    np.testing.assert_allclose(moved * 500, middle[:3], atol=1e-3)
    np.testing.assert_allclose(turned.as_rotvec() * 500, middle[3:], atol=5e-3)
    joints = after["state/joint_positions"].astype(float) - before["state/joint_positions"]
    np.testing.assert_allclose(joints * 500, after["state/joint_velocities"], atol=1e-3)


def test_physics_and_impedance_run_at_500_hz_or_more():
    env, _ = started("reach", 0)
    assert env.robot.world.physics_rate_hz >= 500.0


@pytest.mark.parametrize("rate", [10.0, 50.0])
def test_a_step_is_one_control_period(rate):
    env, _ = started("reach", 0, f"control_rate_hz={rate}")
    before = env.robot.world.data.time
    env.step(REST)
    assert env.robot.world.data.time - before == pytest.approx(1 / rate)
    assert env.schema.control_rate_hz == rate


def test_it_holds_a_pose_without_drift():
    env, first = started("reach", 0)
    last = run(env, REST, 100)[-1]
    np.testing.assert_allclose(last["state/tcp_pose"], first["state/tcp_pose"], atol=2e-6)
    assert np.abs(last["state/joint_velocities"]).max() < 1e-6


def test_it_reaches_a_commanded_pose():
    env, first = started("reach", 0)
    action = np.array([1, 0.5, -1, 0, 0, 1], np.float32)
    run(env, action, 5)
    last = run(env, REST, 15)[-1]
    moved = last["state/tcp_pose"][:3] - first["state/tcp_pose"][:3]
    np.testing.assert_allclose(moved, 0.01 * 5 * action[:3], atol=0.002)
    turned = (
        Rotation.from_quat(last["state/tcp_pose"][3:])
        * Rotation.from_quat(first["state/tcp_pose"][3:]).inv()
    )
    np.testing.assert_allclose(turned.as_rotvec(), 0.05 * 5 * action[3:], atol=0.01)


def test_the_lead_is_target_minus_measured():
    env, _ = started("reach", 0)
    observation, *_ = env.step(FORWARD)
    assert observation["state/target_lead"][0] > 0.0
    np.testing.assert_allclose(
        observation["state/target_lead"][:3],
        env.robot.limiter.target[:3] - observation["state/tcp_pose"][:3],
        atol=1e-7,
    )
    turned = env.step(np.array([0, 0, 0, 0, 0, 1], np.float32))[0]
    assert turned["state/target_lead"][5] > 0.0


@pytest.mark.parametrize("task", ["reach", "peg_insert"])
def test_pressing_on_the_table_pushes_the_tool_up(task):
    env, first = started(task, 1)
    np.testing.assert_array_equal(first["state/tcp_wrench"], np.zeros(6))
    last = run(env, -UP, 40)[-1]
    assert last["state/tcp_wrench"][2] > 3.0
    assert np.abs(last["state/tcp_wrench"][:2]).max() < 0.2 * last["state/tcp_wrench"][2]
    assert last["state/target_lead"][2] < 0.0


def test_pushing_into_the_table_does_not_wind_up():
    env, _ = started("peg_insert", 1)
    largest = env.robot.limiter.limits.max_lead_translation
    for _ in range(50):
        measured = env.robot.world.tcp_pose()
        observation, *_ = env.step(-UP)
        assert np.abs(env.robot.limiter.target[:3] - measured[:3]).max() <= largest + 1e-9
    pressed = observation["state/tcp_wrench"][2]
    assert pressed == pytest.approx(1000.0 * largest, rel=0.2)
    height = observation["state/tcp_pose"][2]
    first, second, _, fourth = run(env, UP, 4)
    assert first["state/tcp_wrench"][2] < 0.6 * pressed
    assert second["state/tcp_wrench"][2] < 0.1 * pressed
    assert fourth["state/tcp_pose"][2] > height + 0.008


def test_joint_limits_and_the_workspace_hold_in_every_corner():
    env, _ = started("reach", 0)
    limits, model = env.robot.limiter.limits, env.robot.world.model
    low, high = model.jnt_range[:7].T
    rng = np.random.default_rng(0)
    clamped = 0
    for corner in np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1])).T.reshape(-1, 3):
        for _ in range(30):
            action = np.concatenate([corner, rng.choice([-1, 1], 3)]).astype(np.float32)
            observation, *_, info = env.step(action)
            clamped += info["clamped"]
            joints = observation["state/joint_positions"]
            assert np.all((joints >= low) & (joints <= high))
            target = env.robot.limiter.target[:3]
            assert np.all(target >= limits.workspace_low)
            assert np.all(target <= limits.workspace_high)
    assert clamped > 0


@pytest.mark.parametrize("delay", [0.0, 0.3])
def test_hold_stops_the_arm_where_it_is(delay):
    env, _ = started("reach", 0, f"domain.action_delay=[{delay},{delay}]")
    moving = run(env, FORWARD, 6)[-1]
    env.robot.hold()
    held = run(env, REST, 20)
    for observation in held:
        shift = observation["state/tcp_pose"][:3] - moving["state/tcp_pose"][:3]
        assert np.abs(shift).max() < 0.003  # what it takes to come to rest, and no further action
        # A period after the hold it rests: the spring to the target does not pull it back.
        assert np.abs(observation["state/tcp_velocity"][:3]).max() < 0.01
    assert np.abs(held[-1]["state/tcp_velocity"]).max() < 1e-3
    np.testing.assert_allclose(held[-1]["state/target_lead"][:3], 0.0, atol=2e-3)


def test_a_pose_out_of_reach_says_so():
    env, _ = started("reach", 0)
    far = np.array([2.0, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0])
    with pytest.raises(RobotRLError, match="cannot reach") as problem:
        env.robot.reset(far, np.random.default_rng(0))
    assert "got: [2.0" in str(problem.value)
    assert "expected:" in str(problem.value)


def test_a_task_without_a_world_says_what_to_do():
    task = registry.make(configuration("task=reach").task.environment, Task)
    with pytest.raises(RobotRLError, match=r"'reach'.*next: .*make_env"):
        _ = task.world
