"""Universal Robots (CB3 and e-Series) with `ur-rtde`: Cartesian impedance through force mode.

A thread streams `forceMode` at `rate_hz`: the wrench of a spring between the TCP and its target.
`setWatchdog` arms the controller's watchdog: if this process is killed or its node stops reading
the arm, the controller's program ends and the arm holds in position control. Force mode starts with
the first target that requires motion. Until then, and after `hold`, the controller holds position,
so neither a contact nor an unzeroed force sensor can move the arm.

Poses, velocities and wrenches are in the controller's `base` frame ("Base" on the pendant). The
`base_link` of ROS's ur_description is rotated by 180° about z: x and y change sign.

Not yet run on hardware.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np

from drivers.arm.base import (
    JointLimits,
    Spring,
    StateClock,
    Tool,
    Vector,
    check_free,
    dh_pose,
    pose_of,
)
from drivers.base import (
    DriverError,
    DriverFault,
    DriverTimeout,
    check_ranges,
    check_reachable,
)
from robot_rl.errors import require
from robot_rl.processes.waiting import wait_until
from robot_rl.safety import ArmState, Compliance, rotations

_RTDE_PORT = 30004
_STALE_SECONDS = 0.2
# A node without a new reading for this long is dead: stop kicking the controller's watchdog.
_NODE_SECONDS = 0.3
# Longest wait for the streaming thread; after that the controller's watchdog ends force mode.
_END_SECONDS = 0.5
# Longest wait for the library to disconnect.
_PART_SECONDS = 5.0
# Longest wait for a requested change; the same as the library's for its program.
_CHANGE_SECONDS = 5.0
_JOINTS = (
    *("shoulder_pan_joint", "shoulder_lift_joint", "elbow_joint"),
    *("wrist_1_joint", "wrist_2_joint", "wrist_3_joint"),
)
# d1, a2, a3, d4, d5 and d6 of Universal Robots' Denavit-Hartenberg tables [m].
_LINKS = {
    "ur3": (0.1519, -0.24365, -0.21325, 0.11235, 0.08535, 0.0819),
    "ur5": (0.089159, -0.425, -0.39225, 0.10915, 0.09465, 0.0823),
    "ur10": (0.1273, -0.612, -0.5723, 0.163941, 0.1157, 0.0922),
    "ur3e": (0.15185, -0.24355, -0.2132, 0.13105, 0.08535, 0.0921),
    "ur5e": (0.1625, -0.425, -0.3922, 0.1333, 0.0997, 0.0996),
    "ur10e": (0.1807, -0.6127, -0.57155, 0.17415, 0.11985, 0.11655),
    "ur16e": (0.1807, -0.4784, -0.36, 0.17415, 0.11985, 0.11655),
    "ur20": (0.2363, -0.862, -0.7287, 0.201, 0.1593, 0.1543),
    "ur30": (0.2363, -0.637, -0.5037, 0.201, 0.1593, 0.1543),
}
_ROBOT_RUNS = 7  # robot mode with open brakes
_FULL_TURN = 2.0 * math.pi
# A target this close to a resting arm requires no motion [m, rad].
_SAME_PLACE, _SAME_TURN = 5e-4, 2e-3
_FORCE_FRAME_UNCHANGED = 2
_COMPLIANT = [1] * 6


@dataclass(eq=False)
class UrArm:
    """A UR arm; needs `ur-rtde`."""

    compliance: ClassVar[Compliance] = "force_mode"
    joint_names: ClassVar[tuple[str, ...]] = _JOINTS
    joint_limits: ClassVar[JointLimits] = ((-_FULL_TURN,) * 6, (_FULL_TURN,) * 6)

    host: str  # name or IP address of the controller
    spring: Spring = field(default_factory=Spring)  # the impedance
    rate_hz: float = 500.0  # force commands per second: 500 for e-Series, 125 for CB3
    max_speed: float = 0.25  # largest TCP speed along an axis in force mode [m/s]
    max_turn_speed: float = 1.0  # the same about an axis [rad/s]
    force_mode_damping: float = 0.025  # see UR's `force_mode_set_damping`, 0 to 1
    # See UR's `force_mode_set_gain_scaling`, 0 to 2 (e-Series). Above 1, hard contact is unstable.
    # The default is that of ur-rtde's program, half of UR's.
    force_mode_gain: float = 0.5
    watchdog_hz: float = 10.0  # below this command rate the controller ends the program
    timeout_s: float = 3.0  # for connecting [s]
    tool: Tool | None = None  # must match the controller's settings; None: any tool
    type: str | None = None  # such as ur5e; required for resets by joint positions

    def __post_init__(self) -> None:
        check_ranges(
            "UR arm",
            self,
            rate_hz=(10.0, 500.0),
            max_speed=(0.001, 1.0),
            max_turn_speed=(0.001, 3.0),
            force_mode_damping=(0.0, 1.0),
            force_mode_gain=(0.0, 2.0),
            watchdog_hz=(1.0, 100.0),
            timeout_s=(0.1, 60.0),
        )
        if self.type is not None:
            if self.type not in _LINKS:
                problem = "the type of the UR arm is unknown"
                hint = "correct the driver's type, or leave it out where nothing resets by joints"
                raise DriverError(problem, got=self.type, expected=", ".join(_LINKS), hint=hint)
            d1, a2, a3, d4, d5, d6 = _LINKS[self.type]
            quarter = 0.5 * math.pi
            rows = [(0, d1, quarter), (a2, 0, 0), (a3, 0, 0), (0, d4, quarter), (0, d5, -quarter)]
            self.forward_kinematics = partial(dh_pose, [*rows, (0, d6, 0)])
        self._control_module = require("rtde_control", "ur")
        self._receive_module = require("rtde_receive", "ur")
        self._dashboard_module = require("dashboard_client", "ur")
        self._speeds = [self.max_speed] * 3 + [self.max_turn_speed] * 3
        self._control: Any = None
        self._receive: Any = None
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._target: Vector | None = None  # None: no force is streamed
        self._resting = True  # until a target requires motion
        self._stopped = False
        self._problem: BaseException | None = None
        self._fed = -math.inf
        self._clock = StateClock()
        self.fault: str | None = None

    def examine(self) -> str:
        """Identify the controller without touching the arm; raises `DriverError` without one."""
        check_reachable("UR controller", self.host, _RTDE_PORT, self.timeout_s)
        dashboard = self._dashboard_module.DashboardClient(self.host)
        try:
            dashboard.connect(round(1e3 * self.timeout_s))
            polyscope = dashboard.polyscopeVersion()
        except RuntimeError as error:
            raise DriverError(
                f"the dashboard of the UR controller at {self.host} does not answer",
                got=error,
                hint="is this the controller's address? Then enable its dashboard server, port"
                " 29999: clear_errors needs it",
            ) from error
        finally:
            dashboard.disconnect()
        return f"PolyScope {polyscope} at {self.host}, ur-rtde {version('ur-rtde')}"

    def connect(self) -> None:
        """Upload the control script; the arm holds until a target requires motion."""
        check_reachable("UR controller", self.host, _RTDE_PORT, self.timeout_s)
        try:
            self._receive = self._receive_module.RTDEReceiveInterface(self.host, self.rate_hz)
            self._control = self._control_module.RTDEControlInterface(self.host, self.rate_hz)
            if self.tool is not None:
                tcp = pose_of(self._control.getTCPOffset())
                self.tool.check(tcp, self._receive.getPayload())
        except (DriverError, RuntimeError) as error:
            self.close()
            if isinstance(error, DriverError):
                raise
            raise DriverError(
                f"the UR controller at {self.host} cannot be controlled",
                got=error,
                hint="put it into remote control, end its protective stop and pop-ups at the "
                "pendant, and see that no other program or client controls it",
            ) from error

    def read(self) -> ArmState:
        """Return the latest measurement, stamped when first seen; raises as `Arm.read`."""
        receive = self._receive
        if receive is None or not receive.isConnected():
            raise DriverTimeout(
                f"the UR controller at {self.host} is not connected", hint="check power and cable"
            )
        if self._clock.take(receive.getTimestamp()):
            self._fed = time.monotonic()
        self._clock.check("the UR arm's state", _STALE_SECONDS)
        self.fault = self.fault or self._reported_fault()
        return ArmState(
            self._clock.stamp_ns,
            np.array(receive.getActualQ(), np.float64),
            np.array(receive.getActualQd(), np.float64),
            pose_of(receive.getActualTCPPose()),
            np.array(receive.getActualTCPSpeed(), np.float64),
            np.array(receive.getActualTCPForce(), np.float64),
        )

    def command(self, target_pose: Vector) -> None:
        """Set the equilibrium pose (7,); raises as `Arm.command`."""
        check_free("UR arm", self.fault, self._stopped)
        target = np.array(target_pose, np.float64)
        if self._resting:
            way, turn = rotations.apart(pose_of(self._receive.getActualTCPPose()), target)
            if way < _SAME_PLACE and turn < _SAME_TURN:
                return
            self._begin()
        self._target = target

    def hold(self) -> None:
        """Leave force mode: the controller holds position until a target requires motion."""
        self._resting, self._target = True, None

    def stop(self) -> None:
        """Leave force mode: the controller stops the arm and holds position.

        If the library does not respond, its watchdog is no longer kicked, with the same effect.
        """
        self._stopped = True
        self._end_stream()

    def clear_errors(self) -> None:
        """Unlock a protective stop and restart the program; the arm does not move.

        Powering the arm and releasing its brakes is left to a person at the pendant.
        """
        self._end_stream()
        receive = self._receive
        if receive is None:
            raise DriverFault("the UR arm is not connected", hint="wait until it is")
        pressed, mode = receive.isEmergencyStopped(), receive.getRobotMode()
        if pressed or mode != _ROBOT_RUNS:
            raise DriverFault(
                "the UR arm is not switched on",
                got="its emergency stop is pressed" if pressed else f"robot mode {mode}",
                expected=f"robot mode {_ROBOT_RUNS}, running",
                hint="switch it on and release its brakes at the pendant, then clear_errors",
            )
        if receive.isProtectiveStopped():
            self._unlock()
        self._restart_program()
        self.fault, self._stopped, self._problem = None, False, None

    def zero_ft(self) -> None:
        """Zero the force sensor outside force mode, where a changed reading would move the arm."""
        if self._receive is None or self.fault is not None or self._stopped:
            held = self.fault or ("stopped" if self._stopped else "not connected")
            raise DriverFault("the UR arm's force sensor is not zeroed", got=held)
        self._end_stream()  # the library supports one thread; its watchdog then ends the program
        self._restart_program()
        if not self._control.zeroFtSensor():
            raise DriverFault("the UR controller does not zero its force sensor")

    def close(self) -> None:
        """Leave force mode and disconnect; if the library hangs, the watchdog ends the program."""
        ended = self._end_stream() and self._answers()
        parting = threading.Thread(
            target=_part, args=(self._control, self._receive, ended), name="ur-part", daemon=True
        )
        self._control = self._receive = None
        parting.start()
        parting.join(_PART_SECONDS)

    def _begin(self) -> None:
        """Start streaming the spring's wrench; it continues while the node reads the arm."""
        self._fed = time.monotonic()
        self._resting = False
        if self._thread is not None:
            return
        self._ending = threading.Event()  # one per thread: an old thread must stay ended
        self._thread = threading.Thread(
            target=self._stream, args=(self._control, self._ending), name="ur-force", daemon=True
        )
        self._thread.start()

    def _end_stream(self) -> bool:
        """End force mode; returns False if the library is still waiting for the controller."""
        self._ending.set()
        self._resting, self._target = True, None
        thread, self._thread = self._thread, None
        if thread is None:
            return True
        thread.join(_END_SECONDS)
        return not thread.is_alive()

    def _stream(self, control: Any, ending: threading.Event) -> None:
        """Stream the spring's wrench, as a thread, until asked to end; stores any error."""
        try:
            control.setWatchdog(self.watchdog_hz)
            control.forceModeSetDamping(self.force_mode_damping)
            control.forceModeSetGainScaling(self.force_mode_gain)
            pushing = False
            while not ending.is_set():
                began = control.initPeriod()
                pushing = self._turn(control, pushing)
                control.waitPeriod(began)
            if self._answers():
                control.forceModeStop()
        except BaseException as problem:  # the next read reports it as a fault
            self._problem = problem

    def _answers(self) -> bool:
        """Whether the controller still sends; the library would wait minutes for a silent one."""
        receive = self._receive
        if receive is None or not receive.isConnected():
            return False
        before = receive.getTimestamp()
        return wait_until(lambda: bool(receive.getTimestamp() != before), _STALE_SECONDS)

    def _turn(self, control: Any, pushing: bool) -> bool:
        """Send one wrench; takes and returns whether the controller is in force mode."""
        if self._resting:  # the arm does not move, so it does not have to be read
            if pushing:
                control.forceModeStop()
            control.kickWatchdog()
            return False
        if time.monotonic() - self._fed >= _NODE_SECONDS:
            return pushing
        control.kickWatchdog()
        if (target := self._target) is None:
            return True
        pose = pose_of(self._receive.getActualTCPPose())
        velocity = np.array(self._receive.getActualTCPSpeed(), np.float64)
        wrench = self.spring.wrench(target, pose, velocity)
        frame = [*pose[:3].tolist(), 0.0, 0.0, 0.0]  # origin at the TCP, axes of the base
        sent = control.forceMode(
            frame, _COMPLIANT, wrench.tolist(), _FORCE_FRAME_UNCHANGED, self._speeds
        )
        if not sent:
            raise DriverFault("the UR controller does not take force commands")
        return True

    def _reported_fault(self) -> str | None:
        if self._receive.isEmergencyStopped():
            return "emergency stop"
        if self._receive.isProtectiveStopped():
            return "protective stop"
        if self._problem is not None:
            return f"force mode ended: {self._problem}"
        if self._control is not None and not self._control.isProgramRunning():
            return "the program on the controller has ended"
        return None

    def _unlock(self) -> None:
        dashboard = self._dashboard_module.DashboardClient(self.host)
        try:
            dashboard.connect()
            dashboard.closeSafetyPopup()
            dashboard.unlockProtectiveStop()
        except RuntimeError as error:
            raise DriverFault(
                "the UR arm's protective stop cannot be unlocked",
                got=error,
                hint="look at the arm; 5 s after the stop at the earliest, clear_errors again",
            ) from error
        finally:
            dashboard.disconnect()
        stopped = self._receive.isProtectiveStopped
        self._await(lambda: not stopped(), "the UR arm's protective stop stays")

    def _restart_program(self) -> None:
        """Restart the library's program on the controller; the library waits for neither step.

        A program that is still running has an armed watchdog, which is not kicked between streams.
        """
        control = self._control
        try:
            if control.isProgramRunning():
                control.stopScript()
            self._await(lambda: not control.isProgramRunning(), "the UR arm's program runs on")
            control.reuploadScript()
            self._await(control.isProgramRunning, "the UR arm's program does not begin")
        except RuntimeError as error:
            raise DriverFault("the UR arm's program cannot be started", got=error) from error

    def _await(self, true: Callable[[], bool], problem: str) -> None:
        if not wait_until(true, _CHANGE_SECONDS, every_s=0.01):
            robot, safety = self._receive.getRobotMode(), self._receive.getSafetyMode()
            raise DriverFault(
                problem,
                got=f"robot mode {robot}, safety mode {safety}",
                expected=f"robot mode {_ROBOT_RUNS}, safety mode 1 or 2",
                hint="see what the pendant says, then clear_errors",
            )


def _part(control: Any, receive: Any, ended: bool) -> None:
    """Disconnect, in a separate thread: this blocks while the controller sends nothing.

    The library then retries the connection endlessly and waits for it; once the controller is back,
    the call completes.
    """
    if control is not None:
        if ended:
            control.stopScript()
        control.disconnect()
    if receive is not None:
        receive.disconnect()
