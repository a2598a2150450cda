"""A simulated arm's node in this process, and the configuration of an environment for it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from listening import PATIENT, PATIENT_DRIVER, PATIENT_LIMITS, Running
from omegaconf import OmegaConf

from drivers.arm.sim_node import SimArmNode
from robot_rl.config import compose
from robot_rl.env.robot import RobotInterrupted

REST = {"rate_hz": 60.0}
SCRIPTED = (
    "~robot.episodes",
    "+robot.episodes={_target_:robot_rl.ros.episode_start.ScriptedStart,service:reset,"
    "timeout_s:60.0,speed:0.2,turn_speed:0.5,tolerance:0.01,turn_tolerance:0.1}",
)
# From where the episodes of `reach` start: a way on which the arm can be stopped, and a short one.
FAR = {"reset.pose": [0.40, -0.10, 0.35, 1.0, 0.0, 0.0, 0.0], "reset.speed_translation": 0.25}
NEAR = {
    "reset.pose": [0.45, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0],
    "reset.speed_translation": 0.25,
    "reset.retract_distance": 0.01,
}


def configuration(namespace, *overrides):
    words = ["robot=ros_sim", "task=reach", f"robot.namespace={namespace}", "robot.gripper=false"]
    return compose([*words, *PATIENT, *overrides])


def arm_node(config, further=None, **changed_limits):
    parameters = OmegaConf.to_container(config.nodes.arm.parameters, resolve=True)
    given = {name: value for name, value in parameters.pop("limits").items() if value is not None}
    limits = {f"limits.{name}": value for name, value in given.items()}
    limits |= {f"limits.{name}": value for name, value in changed_limits.items()}
    driver = {**parameters.pop("driver"), **PATIENT_DRIVER}
    return Running(
        SimArmNode,
        config.robot.namespace,
        driver,
        **{**PATIENT_LIMITS, **limits, **REST, **(further or {})},
    )


@contextmanager
def impatient(env, seconds=2.0):
    """An episode's start waits for measurements that do not come, and need not wait for long."""
    measurements, usual = env.robot.measurements, env.robot.sensors
    measurements.limits = replace(usual, start_timeout_s=seconds)
    yield
    measurements.limits = usual


def towards(observation):
    left = observation["state/relative_pose"] / np.repeat([0.01, 0.05], 3)
    return np.clip(left, -1.0, 1.0).astype(np.float32)


def until_begun(env, seed):
    """Begin an episode as the loop does, which asks until the robot can."""
    deadline = time.monotonic() + 30.0
    while True:
        try:
            return env.reset(seed=seed)
        except RobotInterrupted:
            assert time.monotonic() < deadline
            time.sleep(0.1)
