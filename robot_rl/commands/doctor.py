"""`robot-rl doctor`: what works on this machine, and how to mend what does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from robot_rl.errors import RobotRLError
from robot_rl.processes.machine import describe_machine

_SECONDS = 60.0
_PROBES = "robot_rl.commands._doctor_probes"
_TELEOP_PROBE = "robot_rl.commands._teleop_probe"
_WATCHED_SECONDS = 6.0


class Unusable(RobotRLError):
    """Something that everything here needs does not work."""


@dataclass(frozen=True)
class Check:
    """One line of the report.

    Attributes:
        name: Name of the probe.
        use: What it is for.
        required: Whether nothing works without it.
    """

    name: str
    use: str
    required: bool = False


CHECKS = (
    Check("python", "interpreter", required=True),
    Check("mujoco", "physics", required=True),
    Check("torch", "networks", required=True),
    Check("egl", "camera pictures, on a graphics card or in software"),
    Check("osmesa", "camera pictures, in software"),
    Check("gpu", "faster learning"),
    Check("cameras", "Video4Linux cameras"),
    Check("realsense", "RealSense cameras"),
    Check("ros", "ROS 2"),
    Check("keyboard", "teleoperation with keys"),
    Check("hidraw", "teleoperation with a SpaceMouse"),
    Check("gamepads", "teleoperation with a gamepad"),
    Check("disk", "room for runs"),
    Check("memory", "room for processes"),
)


# Only of the device that is asked for.
_TELEOP = Check("teleop", "teleoperation with the device that was named")


@dataclass(frozen=True)
class Finding:
    """What a check came to.

    Attributes:
        works: Whether it works.
        found: What is there, or what is missing.
        mend: How to mend it; None where it works.
    """

    works: bool
    found: str
    mend: str | None = None


def examine(name: str, seconds: float = _SECONDS) -> Finding:
    """Run a probe in a process of its own."""
    return ask([sys.executable, "-m", _PROBES, name], seconds)


def examine_teleop(device: str) -> Finding:
    """Connect a teleoperation device; on a terminal its axes are shown live for some seconds."""
    print(f"{'teleop':<{_width()}}  move {device} and press its buttons ...", flush=True)
    command = [sys.executable, "-m", _TELEOP_PROBE, device, f"{_WATCHED_SECONDS:g}"]
    return ask(command, _SECONDS, shown=sys.stderr.isatty())


def ask(command: Sequence[str], seconds: float, *, shown: bool = False) -> Finding:
    """Run a command whose last line is a `Finding` in JSON; it may crash or hang.

    Args:
        command: The program and its arguments.
        seconds: After this time it is killed.
        shown: Whether its standard error output goes to that of this process.
    """
    mend = f"see what it says: {' '.join(command)}"
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if shown else subprocess.PIPE,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Finding(False, f"gave no answer within {seconds:g} s", mend)
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    try:
        return Finding(**json.loads(lines[-1]))
    except (IndexError, ValueError, TypeError):
        said = (done.stderr or b"").decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), "")
        ended = f"ended with code {done.returncode}"
        if done.returncode < 0:
            ended = f"was killed by signal {-done.returncode}"
        return Finding(False, f"{ended}: {last}"[:200].rstrip(": "), mend)


def run(**options: str | None) -> None:
    """Examine the machine and print a line for each part.

    Args:
        **options: `json`, "true" to print one JSON object as the last line; `teleop`, a choice of
            `configs/teleop` to look at too; `call` and `topic`, what to ask a robot's nodes in
            place of all this, where there is no `ros2` tool.

    Raises:
        Unusable: Python, MuJoCo or torch does not work.
        RobotRLError: A node does not answer, or says no.
    """
    if options.get("call") or options.get("topic"):
        from robot_rl.ros import asking

        if options.get("call"):
            print(asking.call(str(options["call"])), flush=True)
        if options.get("topic"):
            print(asking.newest(str(options["topic"])), flush=True)
        return
    findings = {}
    for check in CHECKS:
        findings[check.name] = examine(check.name)
        _tell(check, findings[check.name])
    if options.get("teleop"):
        findings[_TELEOP.name] = examine_teleop(str(options["teleop"]))
        _tell(_TELEOP, findings[_TELEOP.name])
    broken = [c.name for c in CHECKS if c.required and not findings[c.name].works]
    if options.get("json") == "true":
        report = {name: asdict(finding) for name, finding in findings.items()}
        result = {"usable": not broken, "checks": report, "machine": describe_machine()}
        print(json.dumps(result), flush=True)
    if broken:
        raise Unusable(
            f"robot_rl cannot run here without {', '.join(broken)}",
            got=findings[broken[0]].found,
            hint=findings[broken[0]].mend,
        )


def _tell(check: Check, finding: Finding) -> None:
    state = "ok" if finding.works else "missing"
    print(f"{check.name:<{_width()}}  {state:<7}  {finding.found}", flush=True)
    if finding.mend is not None:
        print(f"{'':<{_width()}}           for {check.use}: {finding.mend}", flush=True)


def _width() -> int:
    return max(len(check.name) for check in (*CHECKS, _TELEOP))
