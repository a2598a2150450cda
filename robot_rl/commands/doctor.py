"""`robot-rl doctor`: check what works on this machine, and how to fix the rest.

    python -m robot_rl.commands.doctor NAME [ARGUMENT]

runs one probe in a separate process, since it may crash or hang. It prints a `CheckResult` as JSON
in the last line, after any library output. A probe returns what it found, or raises `NotHere` with
the fix.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from robot_rl.commands import devices
from robot_rl.errors import RobotRLError, installing

_GIBIBYTE = 2**30
_ENOUGH_DISK = 4 * _GIBIBYTE  # several times the store of a long run on states
_ENOUGH_MEMORY = 2 * _GIBIBYTE  # a whole `robot-rl train` takes 1.2 GiB
_SECONDS = 60.0
_APT = "apt-get install -y --no-install-recommends"
_INSTALL = ".venv/bin/pip install -c constraints.txt -e ."
_SCENE = """<mujoco>
  <visual><quality shadowsize="0" offsamples="0"/></visual>
  <worldbody>
    <light pos="0 0 2"/>
    <camera name="eye" pos="0 -1 0.5" xyaxes="1 0 0 0 0.4 0.9"/>
    <geom type="plane" size="1 1 0.1" rgba="0.2 0.4 0.2 1"/>
    <body pos="0 0 0.3"><freejoint/><geom type="box" size="0.1 0.1 0.1" rgba="0.9 0 0 1"/></body>
  </worldbody>
</mujoco>"""


class NotHere(Exception):
    """A part does not work here; `fix` is what to do."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.fix = fix


class CheckResult(NamedTuple):
    """The result of a check."""

    works: bool
    found: str  # what is present or missing
    fix: str | None = None  # what to do; None if it works


def python() -> str:
    """Python interpreter."""
    found = f"Python {platform.python_version()}"
    if sys.version_info[:2] not in ((3, 11), (3, 12)):
        raise NotHere(found, "install Python 3.11 or 3.12, then: make PYTHON=/path/to/python3.12")
    return f"{found}, {sys.executable}"


def mujoco() -> str:
    """Physics: one simulated second of a falling box."""
    module = imported("mujoco", _INSTALL)
    model = module.MjModel.from_xml_string(_SCENE)
    data = module.MjData(model)
    while data.time < 1.0:
        module.mj_step(model, data)
    return f"mujoco {module.__version__}"


def torch() -> str:
    """Networks: one product and its gradient."""
    module = imported("torch", _INSTALL)
    x = module.ones(8, 8, requires_grad=True)
    (x @ x).sum().backward()
    threads = module.get_num_threads()
    return f"torch {module.__version__}, {threads} thread{'s' * (threads > 1)}"


def gpu() -> str:
    """GPU for the networks."""
    module = imported("torch", _INSTALL)
    if not module.cuda.is_available():
        card = shutil.which("nvidia-smi") or Path("/dev/nvidia0").exists()
        fix = "install PyPI's own build of torch: pip install --force-reinstall torch"
        if module.version.cuda is not None:
            fix = "install NVIDIA's driver, and see that nvidia-smi works"
        raise NotHere(
            f"torch {module.__version__} sees no CUDA device",
            fix if card else f"none is needed, all runs on the CPU; with a card: {fix}",
        )
    names = []
    for index in range(module.cuda.device_count()):
        properties = module.cuda.get_device_properties(index)
        x = module.ones(64, 64, device=f"cuda:{index}")
        if float((x @ x).sum()) != 64.0**3:
            raise NotHere(f"{properties.name} computes wrongly", "look at nvidia-smi and dmesg")
        names.append(f"{properties.name} {properties.total_memory / _GIBIBYTE:.0f} GiB")
    bfloat = "bf16" if module.cuda.is_bf16_supported() else "no bf16"
    return f"{', '.join(names)}, {bfloat}, CUDA {module.version.cuda}"


def realsense() -> str:
    """RealSense cameras."""
    fix = f"{installing('realsense')}; if libusb is missing: apt-get install -y libusb-1.0-0"
    package = imported("pyrealsense2", fix)
    devices = package.context().query_devices()
    if len(devices) == 0:
        raise NotHere(
            "pyrealsense2 works, but sees no camera",
            "plug one into USB 3, and install the udev rules of hardware/udev",
        )
    info = package.camera_info
    return ", ".join(f"{d.get_info(info.name)} {d.get_info(info.serial_number)}" for d in devices)


def ros() -> str:
    """ROS 2."""
    fix = f"source /opt/ros/jazzy/setup.bash; or without a ROS installation: {installing('ros')}"
    module = imported("rclpy", fix)
    module.init()
    module.shutdown()
    distribution = os.environ.get("ROS_DISTRO", "a wheel")
    return f"rclpy from {Path(str(module.__file__)).parent}, {distribution}"


def keyboard() -> str:
    """Keyboard as a teleoperation device, read from the display."""
    from drivers.teleop.keyboard import check_session

    try:
        display = check_session()
    except RobotRLError as error:
        problem, _, hint = str(error).partition("; next: ")
        raise NotHere(problem, hint) from error
    imported("pynput.keyboard", f"{installing('keyboard')}; it needs a compiler and Linux headers")
    return f"pynput on {display}"


def disk() -> str:
    """Disk space for runs."""
    usage = shutil.disk_usage(".")
    text = f"{usage.free / _GIBIBYTE:.1f} GiB free in {Path.cwd()}"
    if usage.free < _ENOUGH_DISK:
        raise NotHere(text, "free some space, or choose another place with runs_directory=PATH")
    return text


def memory() -> str:
    """Memory for the processes of a run."""
    psutil = imported("psutil", _INSTALL)
    available = psutil.virtual_memory().available
    text = f"{available / _GIBIBYTE:.1f} GiB available"
    if available < _ENOUGH_MEMORY:
        raise NotHere(text, "end other programs; a whole `robot-rl train` takes 1.2 GiB")
    return text


def imported(name: str, fix: str) -> ModuleType:
    """Import a package; `NotHere` with this `fix` if that fails."""
    top = name.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        raise NotHere(f"the package {top} is not installed", fix)
    try:
        return importlib.import_module(name)
    except Exception as error:  # a driver's library may raise anything on import
        raise NotHere(f"{name} cannot be imported: {_line(error)}", fix) from error


def rendered(backend: str, library: str, fix: str) -> str:
    """Render one 128×128 frame with a MuJoCo backend, and check it."""
    os.environ["MUJOCO_GL"] = backend
    try:
        module = importlib.import_module("mujoco")
        model = module.MjModel.from_xml_string(_SCENE)
        data = module.MjData(model)
        module.mj_forward(model, data)
        with module.Renderer(model, 128, 128) as renderer:
            renderer.update_scene(data, "eye")
            started = time.perf_counter()
            picture = renderer.render()
            seconds = time.perf_counter() - started
    except Exception as error:  # whatever MuJoCo, PyOpenGL or the library raises
        absent = ctypes.util.find_library(library) is None
        problem = f"the library {library} is not installed" if absent else _line(error)
        raise NotHere(f"MUJOCO_GL={backend}: {problem}", fix) from error
    if picture.shape != (128, 128, 3) or int(picture.max()) == int(picture.min()):
        raise NotHere(f"MUJOCO_GL={backend} renders an empty picture", fix)
    return f"MUJOCO_GL={backend}: one 128×128 frame in {seconds * 1e3:.1f} ms"


def find_devices(pattern: str, name_file: str, group: str) -> str:
    """List the devices that match a pattern; members of `group` may open them.

    `name_file` is the system file with a device's name; `{}` stands for the device file's name.
    """
    root, _, name = pattern.rpartition("/")
    found = sorted(Path(root).glob(name))
    if not found:
        raise NotHere(f"no device among {pattern}", f"plug one in; then: ls -l {pattern}")
    if not any(os.access(path, os.R_OK) for path in found):
        raise NotHere(
            f"no permission to open {', '.join(map(str, found))}",
            f"sudo usermod -aG {group} $USER, then log in again",
        )
    return ", ".join(f"{path} ({_name_in(Path(name_file.format(path.name)))})" for path in found)


def _name_in(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:
        return "unnamed"
    return text.partition("HID_NAME=")[2].partition("\n")[0] or text


def _line(error: BaseException) -> str:
    """Return an error as one line of readable length."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]


class Check(NamedTuple):
    """A line of the report: a probe, the part's purpose, whether robot_rl needs it."""

    probe: Callable[..., str]
    use: str
    required: bool = False


CHECKS = {
    "python": Check(python, "interpreter", required=True),
    "mujoco": Check(mujoco, "physics", required=True),
    "torch": Check(torch, "networks", required=True),
    "egl": Check(
        partial(rendered, "egl", "EGL", f"{_APT} libegl1"),
        "camera pictures, on a graphics card or in software",
    ),
    "osmesa": Check(
        partial(rendered, "osmesa", "OSMesa", f"{_APT} libosmesa6"), "camera pictures, in software"
    ),
    "gpu": Check(gpu, "faster learning"),
    "cameras": Check(
        partial(find_devices, "/dev/video*", "/sys/class/video4linux/{}/name", "video"),
        "Video4Linux cameras",
    ),
    "realsense": Check(realsense, "RealSense cameras"),
    "ros": Check(ros, "ROS 2"),
    "keyboard": Check(keyboard, "teleoperation with keys"),
    "hidraw": Check(
        partial(find_devices, "/dev/hidraw*", "/sys/class/hidraw/{}/device/uevent", "plugdev"),
        "teleoperation with a SpaceMouse",
    ),
    "gamepads": Check(
        partial(find_devices, "/dev/input/js*", "/sys/class/input/{}/device/name", "input"),
        "teleoperation with a gamepad",
    ),
    "disk": Check(disk, "room for runs"),
    "memory": Check(memory, "room for processes"),
}
DEVICE = Check(devices.look, "it to work")
_WIDTH = 12


def examine(name: str, *arguments: str) -> CheckResult:
    """Run a probe in a separate process."""
    command = [sys.executable, "-P", "-m", __name__, name, *arguments]
    return ask(command, _SECONDS, shown=bool(arguments) and sys.stderr.isatty())


def ask(command: Sequence[str], seconds: float, *, shown: bool = False) -> CheckResult:
    """Run a command whose last line is a `CheckResult` in JSON; kill it after `seconds`."""
    fix = f"see what it says: {' '.join(command)}"
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if shown else subprocess.PIPE,
            timeout=seconds,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return CheckResult(False, f"gave no answer within {seconds:g} s", fix)
    try:
        return CheckResult(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        code, said = done.returncode, (done.stderr or "").strip().split("\n")
        ended = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return CheckResult(False, f"{ended}: {said[-1].strip()}"[:200].rstrip(": "), fix)


def run(**options: Any) -> None:
    """Check the machine, print a line for each part, and fail if robot_rl cannot work.

    `call` and `topic` instead query a robot's nodes, for machines without the `ros2` tool.
    """
    if options.get("call") or options.get("topic"):
        from robot_rl.ros import ros_client

        for option, ask_node in (("call", ros_client.ask), ("topic", ros_client.newest_message)):
            if name := options.get(option):
                print(ask_node(name), flush=True)
        return
    cell, teleop, task = (options.get(key) for key in ("cell", "teleop", "task"))
    words = [f"cell={cell}" if cell else f"teleop={teleop or 'none'}"]
    named, open_keys = devices.devices_of(*words, *([f"task={task}"] if task else []))
    findings = {} if cell else {n: _report(n, check, examine(n)) for n, check in CHECKS.items()}
    if open_keys:
        fix = "write it into the cell or the task"
        if "reward.source.path" in open_keys:
            fix += "; reward.source.path is what robot-rl train-reward writes, until then take"
            fix += " reward=human"
        given = CheckResult(False, f"not given: {', '.join(open_keys)}", fix)
        findings["cell"] = _report("cell", DEVICE, given)
    for name, device in named.items():
        findings[name] = _report(name, DEVICE, examine("device", *device))
    required = findings if cell else [name for name, check in CHECKS.items() if check.required]
    broken = [name for name in required if not findings[name].works]
    if options.get("json"):
        from robot_rl.processes.machine import describe_machine  # late import: needs psutil

        report = {name: finding._asdict() for name, finding in findings.items()}
        result = {"usable": not broken, "checks": report, "machine": describe_machine()}
        print(json.dumps(result), flush=True)
    if broken:
        _, got, hint = findings[broken[0]]
        missing = ", ".join(broken)
        problem = f"robot_rl cannot run here without {missing}"
        if cell:
            problem = f"the robot of {cell} is not ready, see above: {missing}"
        raise RobotRLError(problem, got=got, hint=hint)


def _report(name: str, check: Check, finding: CheckResult) -> CheckResult:
    state = "ok" if finding.works else "missing"
    print(f"{name:<{_WIDTH}}  {state:<7}  {finding.found}", flush=True)
    if finding.fix is not None:
        print(f"{'':<{_WIDTH}}           for {check.use}: {finding.fix}", flush=True)
    return finding


def main(name: str, *arguments: str) -> None:
    """Run one probe and print its result."""
    probe = {**CHECKS, "device": DEVICE}[name].probe
    try:
        answer = CheckResult(True, probe(*arguments))
    except NotHere as absent:
        answer = CheckResult(False, str(absent), absent.fix)
    except RobotRLError as error:
        problem, _, fix = str(error).partition("; next: ")
        answer = CheckResult(False, problem, fix or "see hardware/ and the device's manual")
    print("\n" + json.dumps(answer._asdict()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
