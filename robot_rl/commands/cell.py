"""`robot-rl cell`: writes the file of a lab's robot, with comments, and `???` for what it must add.

What the file says of the arm, its limits and their comments are lines of `configs/robot`.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent

from omegaconf import OmegaConf

from robot_rl.config import (
    ConfigError,
    check_value,
    flatten,
    group_choices,
    own_file,
)
from robot_rl.errors import in_shell
from robot_rl.processes.resources import find_resource
from robot_rl.run import CELL_FILE

_HEAD = """\
# A robot of our own: robot-rl COMMAND {cell}. Commands ask for each ??? that is left, and
# robot-rl doctor {cell} looks at the devices. docs/robot.md is the guide. Any other setting
# of robot-rl train --help all can be added here.
choices:                     # of configs/; one that is typed wins, as reward=classifier
  robot: {robot}
  teleop: {teleop}
  observation: {observation}
  reward: human              # people say what is success, unless the task says who
  reset: human               # people restore the scene and say start; scripted: it goes on alone
task:
  tracked:
    reports_success: false   # nobody publishes the topic task/success, which reward=task needs
"""
_ARMS = """\
# Of each arm, in a namespace of its name and with poses in its own base frame. What is the same for
# all may stand outside of `arms`; task.tracked, with the start of the task, may be inside.
arms:
"""
_ROBOT = """\
robot:
  gripper: {gripper}
{joints}\
  # Enter the tool's mass and its TCP in the arm's own controller: poses here are of that TCP.
  limits:                    # of actions; the arm's node keeps all but steps and max_force
{limits}
"""
_JOINTS = """\
  joint_names: ???           # of the controller, in the order of its joint_states
"""
_NODES = """\
nodes:
  arm:
    parameters:
      limits:                # for whoever sends commands; others: robot_rl/safety/limits.py
{force}
{rest}"""
_TOOL = """\
        tool:                # as it is set there; an arm that has another one set is refused
          _target_: drivers.arm.base.Tool
          tcp: ???           # on the flange, m and quaternion xyzw: [0, 0, 0.15, 0, 0, 0, 1]
          payload_kg: ???    # all that the flange carries: gripper, camera, bracket, what it holds
"""
_GRIPPER = """\
  gripper:
    executable: gripper_node
    module: drivers.gripper.node
    parameters:
      driver:                # hardware/grippers.md
{driver}
"""
_GRIPPERS = {
    "robotiq": """\
        _target_: drivers.gripper.robotiq.Robotiq2F
        # /dev/serial/by-id/... of its RS-485 adapter; at a UR's tool connector rtu+tcp://HOST:54321
        address: ???
        speed: 1.0           # 0 slowest to 1 fastest
        force: 0.25          # 0 least to 1 most""",
    "franka": """\
        _target_: drivers.gripper.franka.FrankaHand
        host: {host}
        speed: 0.1           # m/s of the fingers
        force: 30.0          # N of a grasp""",
    "topics": """\
        _target_: drivers.gripper.topics.TopicsGripper
        joint: ???           # its name in the controller's joint_states
        open_at: ???         # its position when open, in the controller's unit
        closed_at: ???
        state_topic: joint_states
        command_topic: gripper_controller/commands
        namespace: ???       # of these topics, such as /controller""",
}
_CAMERA = """\
  {name}_camera:
    executable: camera_node
    module: drivers.camera.node
    parameters:
      camera: {name}
      # crop: [80, 0, 480, 480]   # left, top, width, height to see: robot-rl console gives it
      size: {size}       # in which that is published: as in observation.cameras
      driver:                # hardware/cameras.md
        _target_: {target}
        {device}
        width: 640           # one of the device's own sizes
        height: 480
        rate_hz: 30
{exposure}"""
_EXPOSURE = """\
        exposure_us: null    # null: automatic. Lock all three: what the policy sees must not change
        gain: null
        white_balance_k: null
"""
_CAMERAS = {  # driver, its device, its further lines
    "realsense": ("drivers.camera.realsense.RealSenseCamera", 'serial: "{}"', _EXPOSURE),
    "uvc": (
        "drivers.camera.uvc.UvcCamera",
        "device: {}",
        "        # v4l2-ctl locks its exposure\n",
    ),
    "topics": ("", "", ""),
}
_SEEN = (128, 128)  # pixels
_LAST_LIMIT = "max_force"
_Camera = tuple[str, str, str]  # name, kind and device


def write(
    path: str, *, arm: str | None, arms: str, gripper: str, cameras: str, teleop: str
) -> None:
    """Write the file `path`, or `cell.yaml` in this folder; `ConfigError` where it is there.

    Several `arms`, by their names, have all of it each.
    """
    if arm is None:
        raise ConfigError("which arm is it?", expected="arm=ur, franka, xarm or topics")
    check_value("teleop", teleop, group_choices()["teleop"])
    seen, names = _cameras(cameras), arms.split(",") if arms else []
    if len(names) != len(set(names)):
        raise ConfigError("an arm is given twice", got=f"arms={arms}", hint="name each once")
    if not all(map(str.isidentifier, names)) or len(names) == 1:
        raise ConfigError("names of several arms cannot be read", got=arms, expected="left,right")
    if names and teleop != "none":
        hint = (
            "leave it out. No device can drive two arms yet: bring demonstrations along with"
            " robot-rl import, then dataset=PATH"
        )
        raise ConfigError("a device moves one arm alone", got=f"teleop={teleop}", hint=hint)
    for camera in seen:
        if camera[0].rpartition("/")[0] not in (names or [""]):
            problem = "a camera must name its arm" if names else "the only arm has no name"
            expected = " or ".join(f"{name}/NAME" for name in names) or "NAME alone"
            more = None if names else "or name several arms, as in arms=left,right"
            raise ConfigError(problem, got=f"the camera {camera[0]}", expected=expected, hint=more)
    file = Path(path) if Path(path).suffix in (".yaml", ".yml") else Path(path) / CELL_FILE
    write_new(own_file(file), _text(path, arm, names, gripper, seen, teleop))
    print(f"next: {in_shell('robot-rl', 'doctor', f'cell={path}')}", flush=True)


def write_new(file: Path, text: str) -> None:
    """Write a YAML file and say which keys are to be filled in; `ConfigError` where it is there."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{file} is there already", hint="change it, or name another") from error
    except OSError as error:
        hint = "name a folder of yours, such as lab"
        raise ConfigError(f"{file} cannot be written", got=error, hint=hint) from error
    print(f"written to {file}", flush=True)
    values = flatten(OmegaConf.create(text)).items()  # type: ignore[arg-type]
    if open_keys := [key for key, value in values if value == "???"]:
        print(f"to fill in: {', '.join(open_keys)}", flush=True)


def _text(
    path: str, arm: str, arms: list[str], gripper: str, cameras: list[_Camera], teleop: str
) -> str:
    observation = "pixels" if cameras else "state"
    head = _HEAD.format(
        cell=in_shell(f"cell={path}").replace("\n", "\n#"),
        robot=arm,
        teleop=teleop,
        observation=observation,
    )
    if not arms:
        return head + _text_of_arm(arm, gripper, cameras)
    text = head + _ARMS
    for name in arms:
        seen = [(of.partition("/"), kind, device) for of, kind, device in cameras]
        own = [(camera, kind, device) for (of, _, camera), kind, device in seen if of == name]
        text += f"  {name}:\n" + indent(_text_of_arm(arm, gripper, own), "    ")
    return text


def _text_of_arm(arm: str, gripper: str, cameras: list[_Camera]) -> str:
    robot = find_resource(f"configs/robot/{arm}.yaml").read_text(encoding="utf-8")
    ros = find_resource("configs/robot/_ros.yaml").read_text(encoding="utf-8")
    text = _ROBOT.format(
        gripper=str(gripper != "none").lower(),
        joints=_JOINTS if arm == "topics" else "",
        limits=_lines(ros, "workspace_low", _LAST_LIMIT),
    )
    if cameras:
        text += "observation:\n  cameras:                   # pixels that the policy sees\n"
        width, height = _SEEN
        for name, *_ in cameras:
            text += f"    - {{name: {name}, width: {width}, height: {height}}}\n"
    text += _NODES.format(
        force=_lines(robot, _LAST_LIMIT, _LAST_LIMIT), rest=robot[robot.index("      reset:") :]
    )
    if arm != "topics":  # whose controller nobody here can ask
        text += _TOOL
    if gripper != "none":
        host = "${nodes.arm.parameters.driver.host}" if arm == "franka" else "???"
        text += _GRIPPER.format(driver=_GRIPPERS[gripper].format(host=host))
    for name, kind, device in cameras:
        target, line, exposure = _CAMERAS[kind]
        if target:
            line, size = line.format(device), list(_SEEN)
            text += _CAMERA.format(
                name=name, target=target, device=line, size=size, exposure=exposure
            )
        else:
            text += (
                f"  {name}_camera: null         # somebody else publishes {name}/color/image_raw\n"
            )
    return text


def _lines(text: str, first: str, last: str) -> str:
    """The lines of a YAML file from one key to another, with what is said beside them."""
    found = re.search(rf"^ +{first}:(?:.*\n)*? +{last}:.*|^ +{last}:.*", text, re.MULTILINE)
    assert found, f"configs/robot lacks {last}"
    return found[0]


def _cameras(words: str) -> list[_Camera]:
    """Name, kind and device of each camera."""
    found: list[_Camera] = []
    for word in filter(None, words.split(",")):
        name, kind, device = (*word.split(":", 2), "", "")[:3]
        known = name.replace("/", "", 1).isidentifier() and kind in _CAMERAS
        if not known or bool(device) != (kind != "topics"):
            expected = "cameras=wrist:realsense:SERIAL,front:uvc:/dev/video0,side:topics"
            raise ConfigError("a camera cannot be read", got=word, expected=expected)
        if name in [other for other, *_ in found]:
            raise ConfigError("two cameras have one name", got=f"{name} in {words}")
        found.append((name, kind, device))
    return found
