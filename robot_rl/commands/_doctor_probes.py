"""The probes of `robot-rl doctor`; each runs in a process of its own, which may crash or hang.

    python -m robot_rl.commands._doctor_probes NAME

prints the answer as JSON in its last line, after whatever a library has to say. A probe returns
what it found, and raises `NotHere` with the way to mend it.
"""

from __future__ import annotations

import ctypes.util
import fcntl
import importlib.util
import json
import os
import platform
import shutil
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

_GIBIBYTE = 2**30
_ENOUGH_DISK = 4 * _GIBIBYTE  # a long run on states with its store, several times over
_ENOUGH_MEMORY = 2 * _GIBIBYTE  # a whole `robot-rl train` takes 1.2 GiB
_QUERY_CAPABILITIES = 0x80685600  # VIDIOC_QUERYCAP of linux/videodev2.h
_VIDEO_CAPTURE = 0x1001  # with one plane or with several
_JOYSTICK_NAME = 0x80806A13  # JSIOCGNAME(128) of linux/joystick.h
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
    """Something that does not work here.

    Args:
        problem: What is missing.
        mend: Commands, or what else helps.
    """

    def __init__(self, problem: str, mend: str) -> None:
        """See the class."""
        super().__init__(problem)
        self.mend = mend


def python() -> str:
    """The interpreter."""
    if sys.version_info[:2] not in ((3, 11), (3, 12)):
        raise NotHere(
            f"Python {platform.python_version()}",
            "install Python 3.11 or 3.12, then: make PYTHON=/path/to/python3.12",
        )
    return f"Python {platform.python_version()}, {sys.executable}"


def mujoco() -> str:
    """The physics: one simulated second of a falling box."""
    module = _imported("mujoco", "pip install -c constraints.txt -e .")
    model = module.MjModel.from_xml_string(_SCENE)
    data = module.MjData(model)
    while data.time < 1.0:
        module.mj_step(model, data)
    return f"mujoco {module.__version__}"


def torch() -> str:
    """The networks: one product and its gradient."""
    module = _imported("torch", "pip install -c constraints.txt -e .")
    x = module.ones(8, 8, requires_grad=True)
    (x @ x).sum().backward()
    threads = module.get_num_threads()
    return f"torch {module.__version__}, {threads} thread{'s' * (threads > 1)}"


def egl() -> str:
    """Cameras rendered on the graphics card, or by Mesa in software."""
    return _rendered("egl", "EGL", "apt-get install -y --no-install-recommends libegl1")


def osmesa() -> str:
    """Cameras rendered in software."""
    return _rendered("osmesa", "OSMesa", "apt-get install -y --no-install-recommends libosmesa6")


def gpu() -> str:
    """A graphics card for the networks."""
    module = _imported("torch", "pip install -c constraints.txt -e .")
    if not module.cuda.is_available():
        card = shutil.which("nvidia-smi") or Path("/dev/nvidia0").exists()
        if module.version.cuda is None:
            mend = "install PyPI's own build of torch: pip install --force-reinstall torch"
        else:
            mend = "install NVIDIA's driver, and see that nvidia-smi works"
        raise NotHere(
            f"torch {module.__version__} sees no CUDA device",
            mend if card else f"none is needed, all runs on the CPU; with a card: {mend}",
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


def cameras() -> str:
    """Video4Linux cameras."""
    found = _each("/dev/video*", _camera_name, "video")
    if not found:
        raise NotHere("no camera among /dev/video*", "plug one in; then: ls -l /dev/video*")
    return ", ".join(found)


def realsense() -> str:
    """RealSense cameras."""
    package = _imported(
        "pyrealsense2",
        "pip install pyrealsense2; if libusb is missing: apt-get install -y libusb-1.0-0",
    )
    devices = package.context().query_devices()
    if len(devices) == 0:
        raise NotHere(
            "pyrealsense2 works, but sees no camera",
            "plug one into USB 3, and install librealsense's 99-realsense-libusb.rules for udev",
        )
    info = package.camera_info
    return ", ".join(f"{d.get_info(info.name)} {d.get_info(info.serial_number)}" for d in devices)


def ros() -> str:
    """ROS 2."""
    module = _imported(
        "rclpy",
        "source /opt/ros/jazzy/setup.bash; or without a ROS installation:"
        ' pip install "ros-jazzy-rclpy[fastrtps]"',
    )
    module.init()
    module.shutdown()
    return (
        f"rclpy from {Path(str(module.__file__)).parent}, {os.environ.get('ROS_DISTRO', 'a wheel')}"
    )


def keyboard() -> str:
    """Keys as a teleoperation device, read from the display."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise NotHere("no display: DISPLAY is not set", "log in at the desktop, or with ssh -X")
    _imported("pynput.keyboard", "pip install pynput; it needs a compiler and Linux headers")
    return f"pynput on {os.environ.get('DISPLAY') or os.environ['WAYLAND_DISPLAY']}"


def hidraw() -> str:
    """Raw input devices, such as a SpaceMouse."""
    found = _each("/dev/hidraw*", _hidraw_name, "plugdev")
    if not found:
        raise NotHere("no device among /dev/hidraw*", "plug one in, for example a SpaceMouse")
    return ", ".join(found)


def gamepads() -> str:
    """Gamepads and joysticks."""
    found = _each("/dev/input/js*", _gamepad_name, "input")
    if not found:
        raise NotHere("no gamepad among /dev/input/js*", "plug one in; if need be: modprobe joydev")
    return ", ".join(found)


def disk() -> str:
    """Room for runs."""
    usage = shutil.disk_usage(".")
    text = f"{usage.free / _GIBIBYTE:.1f} GiB free in {Path.cwd()}"
    if usage.free < _ENOUGH_DISK:
        raise NotHere(text, "free some space, or choose another place with runs_directory=PATH")
    return text


def memory() -> str:
    """Memory for the processes of a run."""
    psutil = _imported("psutil", "pip install -c constraints.txt -e .")
    available = psutil.virtual_memory().available
    text = f"{available / _GIBIBYTE:.1f} GiB available"
    if available < _ENOUGH_MEMORY:
        raise NotHere(text, "end other programs; a whole `robot-rl train` takes 1.2 GiB")
    return text


def _imported(name: str, mend: str) -> ModuleType:
    top = name.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        raise NotHere(f"the package {top} is not installed", mend)
    try:
        return importlib.import_module(name)
    except Exception as error:  # a driver's library may raise anything when it is imported
        raise NotHere(f"{name} cannot be imported: {_line(error)}", mend) from error


def _rendered(backend: str, library: str, mend: str) -> str:
    """Render one 128×128 frame with a backend of MuJoCo, and look at it."""
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
        raise NotHere(f"MUJOCO_GL={backend}: {problem}", mend) from error
    if picture.shape != (128, 128, 3) or int(picture.max()) == int(picture.min()):
        raise NotHere(f"MUJOCO_GL={backend} renders an empty picture", mend)
    return f"MUJOCO_GL={backend}: one 128×128 frame in {seconds * 1e3:.1f} ms"


def _each(pattern: str, describe: Callable[[Path], str | None], group: str) -> list[str]:
    """Describe the device files of a pattern, leaving out those that are something else.

    Raises:
        NotHere: There are some, and none of them may be opened.
    """
    root, _, name = pattern.rpartition("/")
    found, refused = [], []
    for path in sorted(Path(root).glob(name)):
        try:
            text = describe(path)
        except PermissionError:
            refused.append(str(path))
            continue
        except OSError as error:
            text = _line(error)
        if text is not None:
            found.append(f"{path} ({text})")
    if refused and not found:
        raise NotHere(
            f"no permission to open {', '.join(refused)}",
            f"sudo usermod -aG {group} $USER, then log in again",
        )
    return found


def _camera_name(path: Path) -> str | None:
    """The name of a camera; None of a node that gives no pictures, as most cameras have too."""
    reply = bytearray(104)
    with _opened(path) as descriptor:
        fcntl.ioctl(descriptor, _QUERY_CAPABILITIES, reply)
    (capabilities,) = struct.unpack_from("<I", reply, 88)  # those of this very node
    return _text(reply[16:48]) if capabilities & _VIDEO_CAPTURE else None


def _gamepad_name(path: Path) -> str:
    reply = bytearray(128)
    with _opened(path) as descriptor:
        fcntl.ioctl(descriptor, _JOYSTICK_NAME, reply)
    return _text(reply)


def _hidraw_name(path: Path) -> str:
    with _opened(path):
        pass
    facts = Path(f"/sys/class/hidraw/{path.name}/device/uevent").read_text(encoding="utf-8")
    names = [line for line in facts.splitlines() if line.startswith("HID_NAME=")]
    return names[0].partition("=")[2] if names else "unnamed"


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a device file to ask it, not to wait for it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _text(reply: bytes | bytearray) -> str:
    return bytes(reply).partition(b"\0")[0].decode("utf-8", "replace")


def _line(error: BaseException) -> str:
    """An error in one line of readable length."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]


PROBES: dict[str, Callable[[], str]] = {
    probe.__name__: probe
    for probe in (
        python,
        mujoco,
        torch,
        egl,
        osmesa,
        gpu,
        cameras,
        realsense,
        ros,
        keyboard,
        hidraw,
        gamepads,
        disk,
        memory,
    )
}


def main(name: str) -> None:
    """Run one probe and print its answer."""
    try:
        answer = {"works": True, "found": PROBES[name]()}
    except NotHere as problem:
        answer = {"works": False, "found": str(problem), "mend": problem.mend}
    print("\n" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
