"""Universal Robots controller twin: lets `ur-rtde` drive a MuJoCo arm.

Supports the commands that `drivers.arm.ur` uses: force mode, zeroing of the force sensor, the RTDE
watchdog, and ending the program. As on a real controller, an answer comes before its effect: a
program starts and ends, and a protective stop ends, some time after the request.

In force mode the commanded wrench moves the arm against a damper, up to the speed limits. Along
non-compliant axes the arm holds its position. UR documents the meaning of damping, gain and limits,
but no numbers. The numbers here give a well damped arm with the defaults of `drivers.arm.ur`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from drivers.arm.base import pose_of
from drivers.base import DriverError
from drivers.live_world import LiveWorld, Vector
from drivers.twin.robotiq_gripper import (
    GripperServer,
    RobotiqGripper,
    WorldFingers,
    serve_gripper,
)
from drivers.twin.ur_sockets import UrSockets
from robot_rl.safety import rotations

# Commands in input_int_register_0 of the program.
_FORCE_MODE, _END_FORCE_MODE, _ZERO_SENSOR, _DAMPING, _GAIN = 6, 7, 8, 20, 21
_WATCHDOG, _STOP_SCRIPT = 35, 255
# Values of output_int_register_0. "Done" stays until the library has seen it and clears the
# command: the library waits up to 300 s for it. It does not wait after streamed commands.
_READY, _DONE = 1, 2
_STOPPED, _RUNNING = 1, 2  # runtime_state of the program
_OFF, _ON = 3, 7  # robot modes
_CHANGE_SECONDS = 0.3
_LOCKED_SECONDS = 5.0  # minimum duration of a protective stop

# Force mode damper at full damping and a gain of 1 [Ns/m, Nms/rad].
_FULL_DAMPING = np.repeat([1200.0, 30.0], 3)
_DEFAULT_DAMPING, _DEFAULT_GAIN = 0.005, 1.0  # UR's defaults
_LEAST_GAIN = 0.01  # the arm does not move at 0


class _Safety(NamedTuple):
    """Safety state, as reported by RTDE."""

    mode: int  # safety_mode
    bits: int  # safety_status_bits


_NORMAL = _Safety(1, 1 << 0)
_PROTECTIVE_STOP = _Safety(3, 1 << 2)
_EMERGENCY_STOP = _Safety(7, 1 << 6 | 1 << 7)


class _ForceMode(NamedTuple):
    turn: Vector  # quaternion xyzw (4,) of the task frame, in the base frame
    compliant: npt.NDArray[np.bool_]  # (6,) per axis, linear then angular
    wrench: Vector  # (6,) in the task frame [N, Nm]
    limits: Vector  # (6,) largest speeds along compliant axes [m/s, rad/s]


@dataclass(eq=False)
class UrController(LiveWorld):
    """Controller and UR arm in a task's world."""

    rate_hz: float = 125.0  # measurement rate; the rate that a client requests is ignored
    host: str = "127.0.0.1"  # address of this machine for UR's ports
    protective_force: float = 150.0  # measured contact force that stops the arm [N]
    # Port that forwards the tool connector's line, with a Robotiq 2F-85; None for no gripper.
    gripper_port: int | None = None
    sensor_offset: float = 0.0  # force sensor reading along z without contact, until zeroed [N]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fault: str | None = None  # why the arm is stopped
        self._steps = max(1, round(self._world.physics_rate_hz / self.rate_hz))
        self._sockets: UrSockets | None = None
        self._line: GripperServer | None = None
        self._fingers = WorldFingers(self)
        self._gripper = RobotiqGripper(self._fingers)
        self._changes: list[tuple[float, Callable[[], None]]] = []  # time and change
        self._beginning = False  # a program is starting
        self._is_running = False
        # whether the pendant is in remote control; otherwise programs are ignored
        self.remote = True
        self._unlockable = 0.0  # when a protective stop may end, steady clock [s]
        self._patience = math.inf  # timeout of the program's watchdog [s]
        self._kicked = 0.0
        self._reply = _READY
        self._outputs: Mapping[str, Any] = {}
        self._time = 0.0  # time since the controller was switched on [s]
        self._robot_mode, self._safety = _ON, _NORMAL
        self._damping, self._gain = _DEFAULT_DAMPING, _DEFAULT_GAIN
        self._force: _ForceMode | None = None
        self._sensor = np.array([0.0, 0.0, self.sensor_offset, 0.0, 0.0, 0.0])
        self._begin(self.seed)
        self._aim = self._world.tcp_pose()  # target pose of the stiff arm (7,)
        self._measure()

    def connect(self) -> None:
        """Open the ports and start time; `DriverError` if a port is in use."""
        self._sockets = UrSockets(self, self.host)
        if self.gripper_port is not None:
            self._line = serve_gripper(self._gripper, self.host, self.gripper_port)
        super().connect()

    def close(self) -> None:
        """Close the ports and stop time."""
        super().close()
        sockets, self._sockets = self._sockets, None
        if sockets is not None:
            sockets.close()
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def reset(self, seed: int) -> Vector:
        """Place the objects as in the seed's scene; the arm stays in place."""
        with self._lock:
            start_pose = self._task.reset(np.random.default_rng(seed))
            self._world.put_back_objects()
        return start_pose

    # -- events ------------------------------------------------------------------------------------

    def protective_stop(self, reason: str = "asked for") -> None:
        """Stop as after a collision; can be unlocked after 5 s."""
        with self._lock:
            self._unlockable = time.monotonic() + _LOCKED_SECONDS
            self._stand(_PROTECTIVE_STOP, f"protective stop: {reason}")

    def emergency_stop(self) -> None:
        """Press the emergency stop: the arm has no power until a person switches it on again."""
        with self._lock:
            self._robot_mode = _OFF
            self._stand(_EMERGENCY_STOP, "emergency stop")

    def power_off(self) -> None:
        """Switch the arm off at the pendant."""
        with self._lock:
            self._robot_mode = _OFF
            self._stand(self._safety, "switched off")

    def switch_on(self) -> None:
        """Do what a person does at the pendant: release the button, switch on, open the brakes."""
        with self._lock:
            self._safety, self._robot_mode, self.fault = _NORMAL, _ON, None

    def cut_connection(self) -> None:
        """Unplug the network cable."""
        self._network().cut()

    def restore_connection(self) -> None:
        """Plug in the network cable."""
        self._network().restore()

    def delay_packets(self, seconds: float) -> None:
        """Stall the network for this long [s], then deliver all packets at once."""
        self._network().stall(seconds)

    def silence_gripper(self) -> None:
        """Stop the gripper's answers, as without its cable; the fingers keep their grip."""
        self._with_gripper().silent = True

    def jam_gripper(self) -> None:
        """Block the fingers in place."""
        self._with_gripper()
        self._fingers.jam()

    def restore_gripper(self) -> None:
        """End both gripper faults."""
        self._with_gripper().silent = self._fingers.jammed = False

    def _with_gripper(self) -> RobotiqGripper:
        if self.gripper_port is None:
            raise DriverError("this twin has no gripper", hint="take robot=twin_ur5e_2f85")
        return self._gripper

    def _network(self) -> UrSockets:
        if self._sockets is None:
            raise DriverError("the controller is not connected", hint="call connect first")
        return self._sockets

    # -- called by the sockets, each in its own thread ---------------------------------------------

    def outputs(self) -> Mapping[str, Any]:
        """Return the RTDE outputs by name, including registers; a missing name is 0."""
        return self._outputs

    def take(self, registers: Mapping[str, float]) -> None:
        """Execute the command in the RTDE input registers."""
        command = int(registers.get("input_int_register_0", 0))
        with self._lock:
            self._kicked = time.monotonic()
            if not self._is_running:
                return  # no program reads them
            if command == _FORCE_MODE:
                self._force = _force_mode(registers)
            elif command == _END_FORCE_MODE:
                self._keep_place()
            elif command == _ZERO_SENSOR:
                self._sensor = -self._wrench()
            elif command == _DAMPING:
                self._damping = registers["input_double_register_0"]
            elif command == _GAIN:
                self._gain = max(_LEAST_GAIN, registers["input_double_register_0"])
            elif command == _WATCHDOG:
                self._patience = 1.0 / registers["input_double_register_0"]
            elif command == _STOP_SCRIPT:
                self._soon(partial(self._run_program, False))
            self._reply = _DONE if command not in (0, _FORCE_MODE) else _READY
            self._outputs = {**self._outputs, "output_int_register_0": self._reply}

    def take_program(self) -> None:
        """Start the uploaded program after a delay; an upload arrives in several parts."""
        with self._lock:
            if not self._beginning:
                self._beginning = True
                self._soon(self._begin_program)

    def answer(self, command: str) -> str:
        """Return the dashboard's answer to a command; UR's error text for an unknown one."""
        with self._lock:
            answers: dict[str, Callable[[], str]] = {
                "PolyscopeVersion": lambda: "URSoftware 5.11.0.108249 (Dec 15 2021)",
                "is in remote control": lambda: str(self.remote).lower(),
                "get serial number": lambda: "20195500000",
                "close safety popup": lambda: "closing safety popup",
                "unlock protective stop": self._unlock,
            }
            known = answers.get(command)
            return known() if known else f"could not understand: '{command}'"

    def _unlock(self) -> str:
        if time.monotonic() < self._unlockable:
            return "Cannot unlock protective stop until 5s after occurrence"
        self._soon(self._unlocked)
        return "Protective stop releasing"

    def _unlocked(self) -> None:
        if self._safety is _PROTECTIVE_STOP:
            self._safety, self.fault = _NORMAL, None

    # -- time -------------------------------------------------------------------------------------

    def _advance(self) -> None:
        now = time.monotonic()
        for change in [change for change in self._changes if change[0] <= now]:
            self._changes.remove(change)
            change[1]()
        if now - self._kicked > self._patience:
            self._run_program(False)
        period = self._period / self._steps
        for _ in range(self._steps):
            self._push()
            self._world.step(period)
        self._time += self._period
        self._wrenches.append(self._world.tcp_wrench())
        force = math.hypot(*self._wrench()[:3])
        if force > self.protective_force and self.fault is None:
            self.protective_stop(f"a contact force of {force:.0f} N")
        self._measure()
        if self._sockets is not None:
            self._sockets.publish()

    def _push(self) -> None:
        """Apply force mode to the arm for one physics step."""
        force, world = self._force, self._world
        if force is None:
            return
        back = rotations.conjugate(force.turn)
        velocity = rotations.rotate_both(back, world.tcp_velocity())
        too_fast = (np.abs(velocity) > force.limits) & (velocity * force.wrench > 0.0)
        wrench = np.where(too_fast, 0.0, force.wrench)
        wrench = wrench - (self._damping / self._gain) * _FULL_DAMPING * velocity
        place = rotations.rotate_both(back, rotations.between(world.tcp_pose(), self._aim))
        way = np.where(force.compliant, wrench / world.stiffness, place)
        free = np.where(force.compliant, np.clip(velocity, -force.limits, force.limits), 0.0)
        world.stretch(
            rotations.rotate_both(force.turn, way), rotations.rotate_both(force.turn, free)
        )

    def _measure(self) -> None:
        world, running, safety = self._world, self._is_running, self._safety
        pose = world.tcp_pose()
        joints = world.joint_positions().tolist()
        position = [*pose[:3].tolist(), *rotations.to_rotation_vector(pose[3:]).tolist()]
        self.stamp_ns = time.time_ns()
        self._outputs = {
            "timestamp": self._time,
            "actual_q": joints,
            "target_q": joints,
            "actual_qd": world.joint_velocities().tolist(),
            "actual_TCP_pose": position,
            "target_TCP_pose": position,
            "actual_TCP_speed": world.tcp_velocity().tolist(),
            "actual_TCP_force": (self._wrench() + self._sensor).tolist(),
            "robot_mode": self._robot_mode,
            "safety_mode": safety.mode,
            "safety_status_bits": safety.bits,
            "runtime_state": _RUNNING if running else _STOPPED,
            "robot_status_bits": (self._robot_mode == _ON) | running << 1,
            "speed_scaling": 1.0,
            "target_speed_fraction": 1.0,
            "output_int_register_0": self._reply,
        }

    def _wrench(self) -> Vector:
        """Return the external wrench on the TCP (6,), after the sensor's filter."""
        return np.mean(self._wrenches, axis=0) if self._wrenches else np.zeros(6)

    def _stand(self, safety: _Safety, reason: str) -> None:
        self._safety, self.fault = safety, reason
        self._run_program(False)

    def _soon(self, change: Callable[[], None]) -> None:
        self._changes.append((time.monotonic() + _CHANGE_SECONDS, change))

    def _begin_program(self) -> None:
        self._beginning = False
        if self._safety is _NORMAL and self._robot_mode == _ON and self.remote:
            self._run_program(True)

    def _run_program(self, running: bool) -> None:
        """Start or stop the program; force mode ends, and the arm holds its position."""
        self._is_running, self._reply = running, _READY
        self._patience = math.inf
        self._keep_place()

    def _keep_place(self) -> None:
        """End force mode and hold the position; an arm that already holds keeps its target."""
        if self._force is not None:
            self._force, self._aim = None, self._world.tcp_pose()
            self._world.set_target(self._aim)


def _force_mode(registers: Mapping[str, float]) -> _ForceMode:
    """Decode the force mode command as ur-rtde's program does."""
    numbers = np.array([registers[f"input_double_register_{i}"] for i in range(18)])
    turn = pose_of(numbers[:6].tolist())[3:]
    compliant = [registers[f"input_int_register_{i}"] != 0 for i in range(2, 8)]
    return _ForceMode(turn, np.array(compliant), numbers[6:12], np.abs(numbers[12:18]))
