"""`robot-rl doctor`: what works on this machine, and how to mend what does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from robot_rl.commands import doctor_probes
from robot_rl.commands.doctor_probes import CHECKS, TELEOP, Check
from robot_rl.errors import RobotRLError

_SECONDS = 60.0
_WIDTH = max(map(len, CHECKS))


class Unusable(RobotRLError):
    """Something that everything here needs does not work."""


@dataclass(frozen=True)
class Finding:
    """What a check came to."""

    works: bool  # whether it works
    found: str  # what is there, or what is missing
    mend: str | None = None  # how to mend it; None where it works


def examine(name: str, *arguments: str) -> Finding:
    """Run a probe in a process of its own."""
    command = [sys.executable, "-m", doctor_probes.__name__, name, *arguments]
    return ask(command, _SECONDS, shown=bool(arguments) and sys.stderr.isatty())


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
    for name, check in CHECKS.items():
        findings[name] = _told(name, check, examine(name))
    if device := options.get("teleop"):
        print(f"{'teleop':<{_WIDTH}}  move {device} and press its buttons ...", flush=True)
        findings["teleop"] = _told("teleop", TELEOP, examine("teleop", device))
    broken = [name for name, c in CHECKS.items() if c.required and not findings[name].works]
    if options.get("json") == "true":
        from robot_rl.processes.machine import describe_machine  # late: it needs psutil

        report = {name: asdict(finding) for name, finding in findings.items()}
        result = {"usable": not broken, "checks": report, "machine": describe_machine()}
        print(json.dumps(result), flush=True)
    if broken:
        raise Unusable(
            f"robot_rl cannot run here without {', '.join(broken)}",
            got=findings[broken[0]].found,
            hint=findings[broken[0]].mend,
        )


def _told(name: str, check: Check, finding: Finding) -> Finding:
    state = "ok" if finding.works else "missing"
    print(f"{name:<{_WIDTH}}  {state:<7}  {finding.found}", flush=True)
    if finding.mend is not None:
        print(f"{'':<{_WIDTH}}           for {check.use}: {finding.mend}", flush=True)
    return finding
