"""Arm node: exposes any arm driver as ROS topics, with a guard that holds if all clients die.

    publishes   joint_states, current_pose, current_twist, current_wrench, applied_pose, mode
    subscribes  target_pose: equilibrium of the Cartesian impedance controller, base frame
    services    stop, clear_errors, reset (std_srvs/Trigger); zero_ft if the arm supports it

An arm with joint targets has `target_joints` and `applied_joints` instead, and publishes whichever
of the other topics it can measure. If the driver also runs a gripper, the node adds the gripper
node's topics. `applied_pose` is each accepted target after the workspace, tilt, step and lead
limits, stamped like its command. `mode` (String) reports each change as `hold`, `follow`, `reset`
or `stopped`, then a colon and the reason. A stop, including an arm fault, survives a restart of
this node: the arm stays stopped until `clear_errors`. See `robot_rl.safety.ArmGuard` for the guard;
`/diagnostics` counts refused and limited commands.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.task import Future
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64, String
from std_srvs.srv import Trigger

from drivers.arm.base import Arm, Rest
from drivers.arm.parameters import ArmParameters
from drivers.base import DriverError, DriverFault
from drivers.gripper.base import check_position
from drivers.gripper.node import JOINT
from robot_rl.errors import RobotRLError, described
from robot_rl.ros import conversions, qos
from robot_rl.ros.conversions import BASE_FRAME, JointTargets, PoseTargets, to_nanoseconds
from robot_rl.ros.device_node import DeviceNode
from robot_rl.ros.faults import MeasuredTwice
from robot_rl.ros.node_process import run_node
from robot_rl.safety import (
    ArmGuard,
    ArmState,
    Mode,
    ResetOutcome,
    StopLatch,
    StopNotKept,
)

_NUMBER = re.compile(r"[\d.]+")


class ArmNode(DeviceNode):
    """The node of an arm.

    ROS parameters, besides those of `DeviceNode`: `limits.*` of `ArmLimits`, or of `JointArmLimits`
    for joint targets; `contact_task`; `reset.pose` or `reset.joints`, and the other `reset.*` of
    `ResetOptions`; `stop_folder`.
    """

    driver_family: ClassVar[type[Any]] = Arm
    default_rate_hz: ClassVar[float] = 100.0
    guard: ArmGuard  # for this driver's arm; set by the first configure

    def __init__(self, name: str = "arm", **options: Any) -> None:
        super().__init__(name, **options)
        self._given = ArmParameters(self)

    def setup(self) -> None:
        """Create the guard for this driver's arm.

        Raises `RobotRLError` if the limits are invalid, the arm is too stiff for a contact
        task, it cannot reach `reset.joints`, or a stop cannot be stored.
        """
        driver, given = self.driver, self._given
        self.guard = ArmGuard(given.limits(driver))
        self._resets = given.resets(driver, self.guard)
        by_joints = hasattr(driver, "command_joints")
        self._send = driver.command_joints if by_joints else driver.command
        self._targets = JointTargets(driver.joint_names) if by_joints else PoseTargets()
        name = self.get_fully_qualified_name()
        self._latch = StopLatch(given.stop_folder, name, self.driver_settings)
        kept = self._latch.reason()
        if kept is not None:
            self.guard.stop(f"before this node started: {kept}")
        self._stops = self.guard.counts["stop"]  # already passed on to the driver
        self._reset_done: Future | None = None
        self._is_led = False  # has followed targets since it was connected
        self._heard = -math.inf  # time of the last command, steady clock [s]
        self._reset_is_accompanied = False  # the client keeps sending during the reset
        self.last_refusal = ""
        self._published_mode = ""
        self._frame = BASE_FRAME  # as named by the driver
        self._several = ""  # last message about multiple command publishers
        self._rest = Rest(self.rate_hz)

    def make_topics(self) -> None:
        """Create the arm's publishers, subscriptions and services."""
        sensors = qos.sensor_publisher(self.rate_hz)
        publisher = self.create_publisher
        self._joint_states = publisher(JointState, "joint_states", sensors)
        self._pose = publisher(PoseStamped, "current_pose", sensors)
        self._twist = publisher(TwistStamped, "current_twist", sensors)
        self._wrench = publisher(WrenchStamped, "current_wrench", sensors)
        targets = self._targets
        self._applied = publisher(targets.kind, targets.applied_topic, sensors)
        self._mode = publisher(String, "mode", qos.latched())
        self._gripper: Any = None
        if hasattr(self.driver, "grip"):  # the driver also runs a gripper
            self._gripper = publisher(JointState, "gripper/state", sensors)
            self.subscribe_to_commands(Float64, "gripper/command", self._take_grip)
        self.subscribe_to_commands(targets.kind, targets.topic, self._take_target)
        self.serve("stop", self._stop)
        if hasattr(self.driver, "zero_ft"):  # its force sensor drifts
            self.serve("zero_ft", self._zero_ft)
        self._clearing = self.serve("clear_errors", self._clear_errors)
        # `reset` waits until the motion ends; its own callback group keeps it from blocking others.
        group = MutuallyExclusiveCallbackGroup()
        self.create_service(Trigger, "reset", self._on_reset, callback_group=group)

    # -- the loop -------------------------------------------------------------------------------

    def poll(self) -> None:
        """Read the arm, move it within the guard's limits, and publish any new measurement."""
        state = self._drive()
        self._rest.take(state)
        if self.freshness.is_new(state.stamp_ns):
            self.publish_state(state)
        outcome = self._resets.poll()
        self._heed_stop()
        self._conclude_reset(outcome)
        silence = time.monotonic() - self._heard
        longest = self.guard.limits.max_stamp_age
        if self._resets.busy and self._reset_is_accompanied and silence > longest:
            self._forget("the client fell silent in the middle of its reset")

    def publish_state(self, state: ArmState) -> None:
        """Publish a new measurement; skip pose, velocity or wrench if unknown."""
        stamp, joints = state.stamp_ns, self.driver.joint_names
        measured = (state.joint_positions, state.joint_velocities, stamp)
        self._joint_states.publish(conversions.joint_state_message(joints, *measured))
        if np.isfinite(state.tcp_pose).all() or isinstance(self._targets, PoseTargets):
            self._pose.publish(conversions.pose_message(state.tcp_pose, stamp, state.frame))
        if np.isfinite(state.tcp_velocity).all():
            self._twist.publish(conversions.twist_message(state.tcp_velocity, stamp, state.frame))
        if np.isfinite(state.tcp_wrench).all():
            self._wrench.publish(conversions.wrench_message(state.tcp_wrench, stamp, state.frame))

        if self._gripper is not None:
            grip = [self.driver.gripper_position]
            self._gripper.publish(conversions.joint_state_message([JOINT], grip, None, stamp))

    def _drive(self) -> ArmState:
        """Read the arm and send it the guard's target."""
        guard, driver = self.guard, self.driver
        try:
            state: ArmState = driver.read()
            self._check_stamp(state)
        except MeasuredTwice as error:  # the next measurement may come from the other publisher
            guard.stop(str(error))
            self._heed_stop()
            raise
        except RobotRLError as error:
            guard.forget(str(error))
            self._publish_mode()
            raise
        self._frame = state.frame
        if driver.fault is not None:
            self._stop_guard(driver.fault)
        try:
            target = guard.tick(time.monotonic(), state)
            self._is_led = self._is_led or guard.mode in (Mode.FOLLOW, Mode.RESET)
            if target is not None and self._is_led:  # control starts with the first command
                self._send(target)
        except DriverFault as fault:  # occurred after the read
            self._stop_guard(str(fault))
        finally:
            self._heed_stop()
        return state

    def _stop_guard(self, reason: str) -> None:
        self.guard.stop(reason)
        self._stops = self.guard.counts["stop"]

    def _heed_stop(self) -> None:
        """Publish the mode and forward a guard stop to the driver."""
        self._publish_mode()
        if self._stops != self.guard.counts["stop"]:
            self._stops = self.guard.counts["stop"]
            self._stop_driver_or_log()

    def _check_stamp(self, state: ArmState) -> None:
        age, most = 1e-9 * (time.time_ns() - state.stamp_ns), self.guard.limits.max_stamp_age
        if abs(age) > most:
            raise DriverError(
                "the arm's measurements are not stamped with this machine's time",
                got=f"{age:.3f} s ago",
                expected=f"at most {most:g} s",
                hint="synchronise the clocks (chrony); a stamp of zero means that the arm's "
                "controller sets none",
            )

    def _publish_mode(self) -> None:
        mode = f"{self.guard.mode.value}: {self.guard.reason}"
        if (words := _NUMBER.sub("", mode)) == self._published_mode:
            return  # only a number changed, such as an age
        self._published_mode = words
        if self.guard.mode is Mode.STOPPED:
            try:
                self._latch.set(self.guard.reason)
            except StopNotKept as problem:
                self.get_logger().error(str(problem))
        self._mode.publish(String(data=mode))

    def commanded_by_several(self, problem: str) -> None:
        """Stop, because a person must find out which publisher is right."""
        self.guard.refuse("publishers", problem)
        if self.guard.reason == self._several:  # a publisher's name was discovered late
            self.guard.reason = problem
        self.guard.stop(problem)
        self._several = problem
        self._heed_stop()

    def _take_target(self, message: Any) -> None:
        """Check a command and move at once instead of at the next poll."""
        guard = self.guard
        self._heard = now = time.monotonic()
        if self._resets.busy:  # this only proves that the client is alive
            self._reset_is_accompanied = True
            return
        stamp = to_nanoseconds(message.header.stamp)
        numbers = self._targets.numbers(message, self._frame)
        goal = guard.command(numbers, stamp, now, time.time_ns())
        self.last_refusal = ""
        self._applied.publish(self._targets.message(goal, stamp, self._frame))
        with contextlib.suppress(RobotRLError):  # the next poll hits the same error and reports it
            self._drive()

    def _take_grip(self, message: Float64) -> None:
        """Accept a gripper command; it goes out with the arm's next target."""
        if self.guard.mode is Mode.STOPPED:
            problem = "the gripper does not move while its arm is stopped"
            raise DriverFault(problem, got=self.guard.reason, hint="call clear_errors")
        self.driver.grip(check_position(message.data))
        self._is_led = True

    # -- operator requests ------------------------------------------------------------------------

    def _stop(self) -> str:
        reason = "the service stop was called"
        self._stop_guard(reason)
        with self.refusing(self._clearing, "arm"):  # clients see the stop in `mode`
            self._publish_mode()  # also stores the stop, whatever the driver does next
            self.get_logger().warning(f"stopped: {reason}")
            if self.is_connected:
                self._stop_driver()
        return "stopped; clear_errors allows motion again"

    def _stop_driver(self) -> None:
        try:
            self.driver.stop()
        except Exception as error:  # from a vendor's library, for example
            raise DriverError(
                "the stop command failed: no more targets are sent, but the arm may still move",
                got=described(error),
                hint="check that the arm stands still; if it does not, press the emergency stop",
            ) from error

    def _stop_driver_or_log(self) -> None:
        """Stop the driver; log a failure instead of raising it."""
        try:
            self._stop_driver()
        except DriverError as error:
            self.get_logger().error(str(error))

    def _clear_errors(self) -> str:
        if not self.is_connected:
            raise DriverError(
                "the arm is not connected",
                hint="see /diagnostics; its node connects by itself: wait some seconds, then call"
                " clear_errors again",
            )
        self.driver.clear_errors()
        self.forget_commanders()
        self._is_led = False
        self._latch.release()
        self.guard.clear()
        self._publish_mode()  # now, so that an immediate stop counts as a change and is stored
        return "the arm holds, and follows commands again"

    def _zero_ft(self) -> str:
        """Zero the force sensor of a holding arm; it then holds at its measured position."""
        if not (self.is_connected and self.is_polling) or self.guard.mode is not Mode.HOLD:
            raise DriverError(
                "zero_ft needs a connected arm that holds",
                got=f"mode {self.guard.mode.value}",
                hint="end the motion first, then call it again",
            )
        force = self._rest.force()
        self._forget("the force sensor is zeroed")  # whether or not zeroing succeeds
        self.driver.zero_ft()
        return f"the force sensor reads zero now; it read {force:.1f} N"

    async def _on_reset(
        self, request: Trigger.Request, answer: Trigger.Response
    ) -> Trigger.Response:
        try:
            if not (self.is_connected and self.is_polling):
                missing = "connected" if self.is_polling else "active"
                raise DriverError(f"the arm's node is not {missing}")
            self._resets.begin(self._given.reset_end(self.guard))
        except RobotRLError as error:
            answer.success, answer.message = False, str(error)
            return answer
        self._reset_is_accompanied = False
        self._reset_done = Future()
        answer.success, answer.message = await self._reset_done
        self._reset_done = None
        return answer

    def _conclude_reset(self, outcome: ResetOutcome | None) -> None:
        if outcome is not None and self._reset_done is not None:
            self._reset_done.set_result(outcome)

    # -- node lifecycle ---------------------------------------------------------------------------

    def connected(self) -> None:
        """Hold at the measured position; if the arm was stopped, stop the driver too."""
        self._is_led = False
        self._forget("connected", unheld=True)
        if self.guard.mode is Mode.STOPPED:
            self._stop_driver_or_log()

    def disconnected(self) -> None:
        """Hold, and discard the measurements."""
        self._forget("the arm is not connected")

    def _forget(self, reason: str, **where: bool) -> None:
        """Abort any motion and hold; for `where` see `ArmGuard.forget`."""
        self._conclude_reset(self._resets.give_up(reason))
        self.guard.forget(reason, **where)
        self._rest.forget()
        self._publish_mode()

    def activating(self) -> None:
        """Hold at the measured position."""
        self._is_led = False
        self._forget("activated", elsewhere=True)

    def deactivated(self) -> None:
        """Hold; nothing more is sent to the arm, whether or not it answers."""
        self._forget("deactivated")
        if self.is_connected:
            try:
                self.driver.hold()
            except Exception as error:  # an arm error must not fail this transition
                self.get_logger().error(f"the arm was not asked to hold: {described(error)}")

    def facts(self) -> Mapping[str, object]:
        """Report mode, reason, compliance, and counts of refused and limited commands."""
        if not self.is_configured:
            return {}
        guard = self.guard
        return {
            "mode": guard.mode.value,
            "reason": guard.reason,
            "last_refusal": self.last_refusal,
            "compliance": self.driver.compliance,
            **guard.counts,
        }

    def warning(self) -> str | None:
        """Report a stop, or commands being refused."""
        if self.guard.mode is Mode.STOPPED:
            return f"stopped: {self.guard.reason}"
        return super().warning()


main = partial(run_node, ArmNode)  # the parameter `driver` selects the driver

if __name__ == "__main__":
    raise SystemExit(main())
