"""`push_t`: push a T-shaped block over the table to a target pose."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from robot_rl.env.sim.task import ScriptedExpert, SimTask, Vector, box, downward, observed
from robot_rl.safety import rotations

BAR = (0.03, 0.12)
STEM = (0.09, 0.03)
HEIGHT = 0.03
# The T's frame is at its centroid; x points from the bar along the stem.
_BAR_X = -STEM[0] * STEM[1] / (BAR[0] * BAR[1] + STEM[0] * STEM[1]) * (BAR[0] + STEM[0]) / 2
_STEM_X = _BAR_X + (BAR[0] + STEM[0]) / 2
REAR_X = _BAR_X - BAR[0] / 2
PUSHER_RADIUS = 0.0075
PUSHER_LENGTH = 0.06
PUSHER_BELOW_TCP = 0.055
PUSHER_CLEARANCE = 0.005
GOAL = np.array([0.54, 0.0, HEIGHT / 2])
_START = np.array([0.33, 0.0, PUSHER_CLEARANCE + PUSHER_BELOW_TCP])


@dataclass(kw_only=True, eq=False)
class PushT(SimTask):
    """Push a T flat on the table, with a round pusher in the gripper, to a fixed target pose.

    The action is planar: x and y of the pusher. Success is a pose within both tolerances of the
    target. The T starts in front of the target with its bar towards the pusher; an overshoot cannot
    be undone from behind. In the observation, `relative_pose` is the T's x, y [m] and yaw [rad]
    relative to the target, `pusher_position` the pusher's x and y [m] in the T's frame.
    """

    observation_fields = observed(
        object_poses=(1, 7),
        relative_pose=(3,),
        relative_pose_fine=(3,),
        pusher_position=(2,),
        pusher_position_fine=(2,),
    )
    action_names = ("x", "y")
    finger_opening = 2 * PUSHER_RADIUS
    observed_objects = ("t_block",)

    distance_low: float  # least distance of the T from the target along x at the start [m]
    distance_high: float  # largest such distance [m]
    lateral_range: float  # half range of the T's start along y [m]
    yaw_range: float  # half range of the T's yaw at the start [rad]
    position_noise: float  # half range of the observation error per axis, fixed per episode [m]
    yaw_noise: float  # half range of the observed yaw's error [rad]
    fine_scale: float  # distance d of the fine observations tanh(position / d) [m]
    angle_scale: float  # angle of the fine observation tanh(yaw / angle) [rad]
    start_noise: float  # half range of the pusher's start position per axis [m]
    tolerance: float  # distance from the target that counts as reached [m]
    angle_tolerance: float  # angle from the target that counts as reached [rad]
    mass: float  # of the T [kg]
    friction: float  # sliding friction between T and pusher; on the table it is 1

    def build(self, spec: mujoco.MjSpec) -> None:
        """Add the pusher to the hand, the T, and a marker of the target."""
        tcp = spec.site("tcp").pos
        centre = tcp + np.array([0.0, 0.0, PUSHER_BELOW_TCP - PUSHER_LENGTH / 2])
        pusher = spec.body("hand").add_body(name="pusher", pos=centre, gravcomp=1)
        # A capsule: few contact points with a box, and cheap to compute.
        pusher.add_geom(
            name="pusher",
            type=mujoco.mjtGeom.mjGEOM_CAPSULE,
            size=[PUSHER_RADIUS, PUSHER_LENGTH / 2 - PUSHER_RADIUS, 0],
            mass=0.05,
            rgba=[0.85, 0.45, 0.1, 1],
            contype=1,
            conaffinity=2,
            friction=[self.friction, 0.005, 0.0001],
        )
        block = spec.worldbody.add_body(name="t_block", pos=GOAL)
        block.add_freejoint(name="t_block")
        block.add_site(name="t_block")
        marker = spec.worldbody.add_body(name="target_marker", pos=[GOAL[0], GOAL[1], 0.0])
        area = BAR[0] * BAR[1] + STEM[0] * STEM[1]
        for part, x, size in (("bar", _BAR_X, BAR), ("stem", _STEM_X, STEM)):
            solid = box(
                [*size, HEIGHT],
                friction=self.friction,
                mass=self.mass * size[0] * size[1] / area,
                rgba=[0.3, 0.45, 0.65, 1],
            )
            block.add_geom(name=part, pos=[x, 0, 0], contype=3, conaffinity=3, **solid)
            flat = box([*size, 0.001], rgba=[0.2, 0.7, 0.3, 1], contype=0, conaffinity=0)
            marker.add_geom(pos=[x, 0, 0], **flat)

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw the T's start pose, its observation error, and the pusher's start."""
        away = np.array([-rng.uniform(self.distance_low, self.distance_high), 0.0, 0.0])
        away[1] = rng.uniform(-self.lateral_range, self.lateral_range)
        yaw = rng.uniform(-self.yaw_range, self.yaw_range)
        self.world.set_start_pose("t_block", np.concatenate([GOAL + away, rotations.about_z(yaw)]))
        noise = self.position_noise
        self._position_error = np.array([*rng.uniform(-noise, noise, 2), 0.0])
        self._yaw_error = rotations.about_z(rng.uniform(-self.yaw_noise, self.yaw_noise))
        start = _START + np.array([*rng.uniform(-self.start_noise, self.start_noise, 2), 0.0])
        return downward(start)

    def block_pose(self) -> Vector:
        """True pose (7,) of the T; for experts and tests, never observed."""
        return self.world.site_pose("t_block")

    def goal_pose(self) -> Vector:
        """TCP pose (7,) with the pusher at the centre of the bar of a T on target."""
        x = GOAL[0] + REAR_X - PUSHER_RADIUS
        return downward(np.array([x, GOAL[1], _START[2]]))

    def remaining(self) -> Vector:
        """True pose of the T relative to the target: x, y [m], yaw [rad] (3,), base frame."""
        return _from_goal(self.block_pose())

    def seen_poses(self) -> Vector:
        """Pose (1, 7) of the T with its observation error."""
        return rotations.displaced(self.block_pose(), self._position_error, self._yaw_error)[None]

    def see(self, object_poses: Vector, tcp_pose: Vector) -> dict[str, Vector]:
        """See `TaskView`; the one object is the T."""
        pose = _from_goal(object_poses[0])
        pusher = rotations.relative(object_poses[0], tcp_pose)[:2]
        face = np.array([REAR_X - PUSHER_RADIUS, 0.0])  # fine near the contact with the bar
        scale = np.array([self.fine_scale, self.fine_scale, self.angle_scale])
        return {
            "state/relative_pose": pose,
            "state/relative_pose_fine": np.tanh(pose / scale),
            "state/pusher_position": pusher,
            "state/pusher_position_fine": np.tanh((pusher - face) / scale[:2]),
        }

    def succeeded(self) -> bool:
        """Whether the T is within both tolerances of the target."""
        x, y, yaw = self.remaining()
        return bool(np.hypot(x, y) <= self.tolerance and abs(yaw) <= self.angle_tolerance)


@dataclass(kw_only=True, eq=False)
class PushTExpert(ScriptedExpert):
    """Pushes the bar from behind and steers by the contact point.

    Pushing at a distance c to the left of the centroid turns the T to the right, about c/r² per
    metre (r: the T's radius of friction), so the T can be steered like a car. The expert's error is
    in the target's pose.
    """

    task: PushT
    lateral_gain: float  # contact offset from the centroid per metre off the target's axis
    yaw_gain: float  # contact offset per radian of yaw [m/rad]
    reach: float  # largest contact offset from the centroid [m]
    gap: float  # distance it backs off to move along the bar [m]

    def waypoint(self, rng: np.random.Generator) -> Vector:
        """Move behind the bar to the contact point, then push forward."""
        x, y, yaw = self.task.remaining() - np.array([*self.error[:2], self.yaw_error])
        contact = self.lateral_gain * y + self.yaw_gain * yaw
        contact = float(np.clip(contact, -self.reach, self.reach))
        block = self.task.block_pose()
        pusher = rotations.relative(block, self.task.world.tcp_pose())
        touching = REAR_X - PUSHER_RADIUS
        if abs(pusher[1] - contact) > self.gap:
            place = np.array([touching - self.gap, contact])
        else:
            place = np.array([touching + min(self.gap, max(-x, 0.0)), contact])
        target = rotations.compose(block, np.array([*place, 0.0, 0.0, 0.0, 0.0, 1.0]))
        return np.concatenate([target[:2], self.task.goal_pose()[2:]])


def _from_goal(block: Vector) -> Vector:
    return np.array([*(block[:2] - GOAL[:2]), rotations.heading(block[3:])])
