"""The simulated arm: a world in real time behind the interface of every arm."""

import time

import numpy as np
import pytest

from drivers.arm.sim import SimArm
from drivers.base import DriverError, DriverFault
from policies import registry
from robot_rl.config import compose
from robot_rl.env.factory import make_env
from robot_rl.env.sim.task import put_in_world
from robot_rl.env.sim.world import GripperMotor, SceneState
from robot_rl.env.task import Task
from robot_rl.errors import RobotRLError


def arm_config(task):
    config = compose([f"task={task}"])
    robot = config["robot"]
    return {
        "_target_": "drivers.arm.sim.SimArm",
        "task": config["task"]["environment"],
        "model": robot["model"],
        "home_joints": robot["home_joints"],
        "gripper": robot["gripper"],
        "stale_after_s": 5.0,
    }


@pytest.fixture
def make_arm(connected):
    return lambda task="reach", **options: connected(
        registry.make(arm_config(task), SimArm, **options)
    )


def wait_for(true, seconds=10.0):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)


def test_it_follows_its_target_and_stamps_its_measurements(make_arm):
    arm = make_arm()
    start = arm.read()
    target = start.tcp_pose + np.array([0.02, 0, 0, 0, 0, 0, 0])
    arm.command(target)
    wait_for(lambda: np.abs(arm.read().tcp_pose[:3] - target[:3]).max() < 1e-3)
    newest = arm.read()
    assert newest.stamp_ns > start.stamp_ns
    assert abs(newest.stamp_ns - time.time_ns()) < 1_000_000_000
    assert len(newest.joint_positions) == len(arm.joint_names) == 7
    assert newest.tcp_wrench.dtype == newest.tcp_pose.dtype == np.float64


def test_a_seed_gives_the_scene_of_the_in_process_simulation():
    arm = registry.make(arm_config("peg_insert"), SimArm)
    env = make_env(compose(["task=peg_insert"]))
    for seed in (0, 7):
        observation, _ = env.reset(seed=seed)
        pose = arm.reset(seed)
        np.testing.assert_allclose(pose, observation["state/tcp_pose"], atol=1e-6)
        np.testing.assert_array_equal(
            arm.scene().object_poses.astype(np.float32), observation["state/object_poses"]
        )


def test_hold_stays_where_the_arm_is(make_arm):
    arm = make_arm()
    arm.command(arm.read().tcp_pose + np.array([0.1, 0, 0, 0, 0, 0, 0]))
    wait_for(lambda: arm.read().tcp_velocity[0] > 0.05)
    arm.hold()
    held = arm.read().tcp_pose
    wait_for(lambda: np.abs(arm.read().tcp_velocity).max() < 1e-3)
    assert np.abs(arm.read().tcp_pose[:3] - held[:3]).max() < 0.04


def test_a_stop_brakes_and_latches_and_the_arm_does_not_spring_back(make_arm):
    arm = make_arm()
    arm.command(arm.read().tcp_pose + np.array([0, 0, 0.1, 0, 0, 0, 0]))
    wait_for(lambda: arm.read().tcp_velocity[2] > 0.08)
    arm.stop()
    backwards, end = 0.0, time.monotonic() + 1.0
    while time.monotonic() < end:
        backwards = min(backwards, arm.read().tcp_velocity[2])
        time.sleep(0.005)
    assert backwards > -0.005  # with its dampers of motion it came back at 28 mm/s
    assert np.abs(arm.read().tcp_velocity[:3]).max() < 0.003
    with pytest.raises(DriverFault, match="stopped"):
        arm.command(arm.read().tcp_pose)
    arm.clear_errors()
    arm.command(arm.read().tcp_pose)


def test_a_collision_reflex_stays_until_a_person_clears_it(make_arm):
    arm = make_arm(reflex_force=30.0)
    below = arm.read().tcp_pose.copy()
    below[2] = -0.1  # 10 cm under the table
    arm.command(below)
    wait_for(lambda: arm.fault is not None)
    assert "collision reflex" in arm.fault
    time.sleep(0.1)
    with pytest.raises(DriverFault, match="collision reflex"):
        arm.command(below)
    arm.read()  # it can still be seen
    arm.clear_errors()
    arm.command(arm.read().tcp_pose)


def copy_of(task):
    """Another world that was built from the same configuration, and its state."""
    config = arm_config(task)
    parts = (
        registry.make(config["task"], Task),
        config["model"],
        registry.make(config["gripper"], GripperMotor),
    )
    world = put_in_world(*parts).world
    return world, SceneState(world)


def test_a_copy_of_the_world_looks_the_same():
    arm = registry.make(arm_config("pick_insert"), SimArm)
    world, state = copy_of("pick_insert")
    assert state.fingerprint == arm.fingerprint
    for seed in (3, 4):
        start = arm.reset(seed)
        scene = arm.scene()
        state.restore(scene.state)
        np.testing.assert_array_equal(state.capture(), scene.state)
        np.testing.assert_allclose(world.tcp_pose(), start, atol=1e-4)
    assert copy_of("reach")[1].fingerprint != arm.fingerprint
    with pytest.raises(RobotRLError, match="another world"):
        state.restore(np.zeros(3))


def test_a_gripper_is_moved_where_the_task_has_one(make_arm):
    arm = make_arm("pick_cube")
    world, state = copy_of("pick_cube")

    def opening():
        state.restore(arm.scene().state)
        return world.finger_opening()

    for position, reached in ((0.0, lambda: opening() > 0.075), (1.0, lambda: opening() < 0.005)):
        arm.command_gripper(position)
        wait_for(reached)
    with pytest.raises(DriverError, match="expected: a position from 0"):
        arm.command_gripper(1.5)


def test_an_arm_that_is_not_connected_says_so():
    arm = registry.make(arm_config("reach"), SimArm)
    with pytest.raises(DriverError, match="not connected"):
        arm.read()


def test_a_task_that_is_not_simulated_is_refused():
    task = {
        "_target_": "robot_rl.env.gym.GymTask",
        "name": "pour_tea",
        "instruction": "",
        "time_limit_steps": 1,
    }
    with pytest.raises(RobotRLError, match=r"cannot do the task 'pour_tea'"):
        registry.make(arm_config("reach") | {"task": task}, SimArm)
