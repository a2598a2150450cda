"""`SimRobot`: the simulated arm, with the same interface and limits as a real one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Observation
from robot_rl.env.robot import ARM_ACTIONS, GRIPPER_ACTION, Action, state_fields
from robot_rl.env.sim.cameras import CameraOptions, RenderedCamera, SceneRenderer
from robot_rl.env.sim.domain import IDEAL, Domain
from robot_rl.env.sim.task import put_in_world
from robot_rl.env.sim.world import GripperMotor, WorldEvent
from robot_rl.env.task import Task
from robot_rl.safety import ActionLimiter, CartesianLimits, rotations

FINGER_STROKE = 0.08


class _Command(NamedTuple):
    target: npt.NDArray[np.float64]
    opening: float
    due: int = 0  # physics steps until it takes effect


@dataclass(eq=False)
class SimRobot:
    """A 7-joint arm in MuJoCo, driven by Cartesian increments, with gripper and cameras.

    If the task's action has no gripper column, the fingers keep their start opening and are not
    measured.

    Raises:
        RobotRLError: The task is not simulated.
    """

    task: Task  # a simulated task; it is attached to the world built for it
    model: str  # path of the arm's MJCF, starting with `hardware/`
    home_joints: Sequence[float]  # initial guess (7,) [rad] when solving for start poses
    limits: CartesianLimits  # limits on commands
    gripper: GripperMotor  # drives the fingers if the task's action has a gripper column
    cameras: Sequence[CameraOptions] = ()  # cameras to observe
    domain: Domain = IDEAL  # deviations from the model, drawn for each episode
    simulated = True
    opens_grippers = True

    def __post_init__(self) -> None:
        sim_task = put_in_world(self.task, self.model, self.gripper)
        self.world = sim_task.world
        self._cameras = [RenderedCamera(self.world, options) for options in self.cameras]
        self._bystander: SceneRenderer | None = None
        images = (field for camera in self._cameras for field in camera.fields)
        self.observation_fields = (*state_fields(len(self.home_joints)), *images)
        self.limiter = ActionLimiter(self.limits)
        self.clamped = False
        self.action_names = sim_task.action_names
        self._columns = [ARM_ACTIONS.index(n) for n in self.action_names if n != GRIPPER_ACTION]
        self._has_gripper = GRIPPER_ACTION in self.action_names
        self._opening = self._finger_opening = sim_task.finger_opening
        self._delay = self._latency = 0  # of actions and images [physics steps]
        self._pending: deque[_Command] = deque()

    def reset(self, start_pose: npt.NDArray[np.float64], rng: np.random.Generator) -> None:
        """Put the arm at rest with the TCP at `start_pose` (7,) in the base frame."""
        self._draw_conditions(rng)
        self.world.reset(start_pose, np.array(self.home_joints))
        self.world.set_finger_opening(self._finger_opening)
        self.limiter.reset(start_pose)
        self._opening = self._finger_opening
        self._pending.clear()
        for camera in self._cameras:
            camera.reset(rng)

    def resume(self, rng: np.random.Generator) -> None:
        """Hold at the current pose and draw new conditions."""
        self._draw_conditions(rng)
        self.hold()

    def apply(self, action: Action) -> Action:
        """Move the impedance target (see `ActionLimiter`) and the gripper by an action (d,)."""
        motion = np.zeros(len(ARM_ACTIONS))
        motion[self._columns] = action[: len(self._columns)]
        pose, force = self.world.tcp_pose(), self.world.tcp_wrench()[:3]
        target, self.clamped = self.limiter.advance(motion, pose, force)
        opening = self._finger_opening
        if self._has_gripper:
            opening = 0.5 * (1.0 - float(action[-1])) * FINGER_STROKE
        self._pending.append(_Command(target, opening, self._delay))
        if motion.any():  # a resting arm keeps its brakes on
            self.world.set_braking(False)
        return action

    def advance(self, period: float) -> None:
        """Simulate one control period [s]; delayed commands take effect when due."""
        steps = max(1, self.world.steps(period))
        events: list[WorldEvent] = []
        while self._pending and self._pending[0].due < steps:
            command = self._pending.popleft()
            events.append(WorldEvent(command.due, partial(self._send, command)))
        self._pending = deque(c._replace(due=c.due - steps) for c in self._pending)
        if self._latency:
            after = steps - self._latency % steps
            events += [WorldEvent(after, camera.shoot) for camera in self._cameras]
        self.world.step(period, events)

    def observe(self) -> Observation:
        """Return the measured state: `state_fields` and camera images."""
        world = self.world
        opening = world.finger_opening() if self._has_gripper else self._finger_opening
        pose = world.measured_tcp_pose()
        state = {
            "state/tcp_pose": pose,
            "state/tcp_velocity": world.tcp_velocity(),
            "state/tcp_wrench": world.sensors.wrench(world.tcp_wrench()),
            "state/target_lead": rotations.between(pose, self.limiter.target),
            "state/joint_positions": world.joint_positions(),
            "state/joint_velocities": world.joint_velocities(),
            "state/gripper_position": np.array([1.0 - opening / FINGER_STROKE]),
        }
        seen: Observation = {name: value.astype(np.float32) for name, value in state.items()}
        for camera in self._cameras:
            seen |= camera.observe(self._latency)
        return seen

    def picture(self) -> npt.NDArray[np.uint8]:
        """Render the overview camera: uint8 (240, 320, 3) RGB."""
        if self._bystander is None:
            self._bystander = SceneRenderer(self.world, 320, 240)
        return self._bystander.color("overview")

    def hold(self) -> None:
        """Brake and stay in place; drop actions that have not taken effect yet.

        The gripper keeps its last command: it may hold an object.
        """
        self._pending.clear()
        self._send(_Command(self.limiter.reset(self.world.tcp_pose()), self._opening))
        self.world.set_braking(True)

    def close(self) -> None:
        """Release the cameras; the world is freed with its last reference."""
        for camera in self._cameras:
            camera.close()
        if self._bystander is not None:
            self._bystander.close()

    def _draw_conditions(self, rng: np.random.Generator) -> None:
        # A separate generator, so that a seed gives the same scene in every domain.
        (own,) = rng.spawn(1)
        conditions = self.domain.draw(own)
        self.world.meet(conditions, own)
        self._delay = self.world.steps(conditions.action_delay)
        self._latency = self.world.steps(conditions.camera_latency)

    def _send(self, command: _Command) -> None:
        self.world.set_target(command.target)
        self.world.set_finger_target(command.opening)
        self._opening = command.opening
