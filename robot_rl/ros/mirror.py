"""The simulated world as the robot's process sees it: for scripted experts, never for policies."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from sensor_msgs.msg import JointState

from robot_rl.env.sim.scene import GripperMotor, SceneState, make_world, simulated
from robot_rl.env.sim.task import SimTask
from robot_rl.env.task import Task
from robot_rl.ros.client import RosClient
from robot_rl.ros.messages import MessageError
from robot_rl.ros.sensors import Sensor

_TOPIC = "sim/state"


class SceneMirror:
    """A copy of the world that the simulated arm's node owns, and the task in it.

    Args:
        task: The simulated task, the same as the arm's.
        model: Path of the arm's MJCF, beginning with `hardware/`.
        gripper: What moves the fingers where the task's action has a gripper column.
    """

    def __init__(self, task: Task, model: str, gripper: GripperMotor) -> None:
        """See the class."""
        self.task: SimTask = simulated(task)
        self._scene = SceneState(make_world(self.task, model, gripper))
        self._sensor: Sensor | None = None

    def listen(self, client: RosClient, limit_s: float) -> Sensor:
        """Begin to follow the world; a state older than `limit_s` is too old."""
        if self._sensor is None:
            self._sensor = Sensor(client, JointState, _TOPIC, limit_s, self._state)
        return self._sensor

    def begin(self, seed: int) -> None:
        """Let the task know what the episode of a seed is about."""
        self.task.reset(np.random.default_rng(seed))

    def update(self) -> None:
        """Show the newest state, if anybody listens.

        Raises:
            RobotInterrupted: It is late, or of another model.
        """
        if self._sensor is not None:
            self._scene.restore(self._sensor.value(self._sensor.newest()))

    def _state(self, message: JointState) -> npt.NDArray[np.float64]:
        if message.header.frame_id != self._scene.fingerprint:
            raise MessageError(
                "the state is of another simulated model",
                got=message.header.frame_id,
                expected=self._scene.fingerprint,
                hint="give this process and the simulated arm's node the same task and model",
            )
        return np.asarray(message.position, np.float64)
