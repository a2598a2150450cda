"""`robot-rl cell` and `robot-rl task`: write a lab's files, with comments and `???` to fill in.

The lines of an arm and its limits are copied from `configs/robot`.
"""

from __future__ import annotations

import json
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
from robot_rl.env.robot import ARM_ACTIONS, GRIPPER_ACTION
from robot_rl.errors import in_shell
from robot_rl.processes.resources import choice_file, find_resource
from robot_rl.run import CELL_FILE
from robot_rl.safety.commands import checked_pose

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
      limits:                # for all who send commands; others: robot_rl/safety/limits.py
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
_CAMERAS = {  # driver, its device, further lines
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


def write_cell(
    path: str, *, arm: str | None, arms: str, gripper: str, cameras: str, teleop: str
) -> None:
    """Write the file `path`, or `cell.yaml` in that folder; `ConfigError` if it exists.

    Each of several named `arms` gets a full set of lines.
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
    """Write a YAML file and print the keys to fill in; `ConfigError` if it exists."""
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
    if arm != "topics":  # no connection to its controller here
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
    """Return the lines of a YAML file from key `first` to key `last`, with their comments."""
    found = re.search(rf"^ +{first}:(?:.*\n)*? +{last}:.*|^ +{last}:.*", text, re.MULTILINE)
    assert found, f"configs/robot lacks {last}"
    return found[0]


def _cameras(words: str) -> list[_Camera]:
    """Parse name, kind and device of each camera."""
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


_TASK = """\
# @package _global_
# {summary}
# Commands with {cell} find it as task={name}. docs/robot.md is the guide.
defaults:
  - override /reward: {reward}{judge}
task:
  name: {name}
  value_range: [0.0, 1.0]    # of the returns: the reward is 1 at success, and 0 before it
{goal}\
  tracked:
    _target_: robot_rl.env.task.TrackedTask
    # Where episodes start, after the reset of the cell: the position is drawn about this TCP pose.
    # robot-rl teach part=start prints both lines.
    start_pose: {start}          # m, xyzw, base frame
    start_noise: {noise}        # m, half the range on each axis; [x, y, z] where they differ
    gripper_closed: {closed}    # true: it closes before the arm goes to a start, and stays closed
    reports_success: {reported}   # true: somebody publishes task/success, as reward=task needs it
    task:
      _target_: robot_rl.env.task.RobotTask
      name: ${{task.name}}
      instruction: {instruction}
      time_limit_steps: {steps}  # at control_rate_hz
      # What the policy moves, in this order; leave out axes along which the tool is to stay.
      action_names: [{actions}]
  expert: null               # people demonstrate: teleop=DEVICE
  # What the policy sees without cameras, and beside their pictures. There are state/joint_positions
  # and state/joint_velocities too; tcp_velocity and tcp_wrench only where the arm measures them.
  observation: ${{task.proprioception}}
  proprioception: [{seen}]
"""
_GOAL = """\
  goal_pose: {goal}             # of the TCP at success, m, xyzw; robot-rl teach part=goal prints it
"""
_CLASSIFIER = """\
classifier:
  cameras: ${observation.cameras}   # by whose pictures it judges
"""
_JUDGES = {
    "human": "     # you say success and failure; others: docs/rewards.md",
    "pose": "      # near goal_pose; how near: reward.source",
    "classifier": "   # of pictures; reward=human until you have trained it",
    "task": "      # the topic task/success",
}
_TASK_STATES = ("tcp_pose", "tcp_velocity", "tcp_wrench", "target_lead")


def write_task(
    path: str,
    *,
    instruction: str | None,
    reward: str,
    gripper: str,
    steps: int,
    start: str | None,
    noise: float,
    goal: str | None,
) -> None:
    """Write `configs/task/NAME.yaml` in FOLDER/NAME; `ConfigError` if it exists or is invalid.

    Prints the next commands.
    """
    folder, name = Path(path).parent, Path(path).name
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name):
        expected = "letters, digits and _, as in lab/plug"
        raise ConfigError("the name of a task", got=name, expected=expected)
    file = own_file(folder / "configs" / "task" / f"{name}.yaml")
    if (other := choice_file("task", name)) not in (None, file):
        raise ConfigError(f"there is a task {name} already", got=other, hint="name yours otherwise")
    if not instruction:
        hint = in_shell("robot-rl", "task", path, "instruction=push the plug into the socket")
        raise ConfigError("what is the robot to do?", expected="instruction=TEXT", hint=hint)
    if goal is not None and reward != "pose":
        raise ConfigError("only reward=pose has a goal", got=f"goal={goal} with reward={reward}")
    for key, number, least in (("steps", steps, 1), ("noise", noise, 0)):
        if number < least:
            raise ConfigError(f"{key} is out of range", got=number, expected=f">= {least}")
    moves = gripper == "moves"
    states = (*_TASK_STATES, *(["gripper_position"] if moves else []))
    text = _TASK.format(
        summary=" ".join(instruction.split()),
        cell=in_shell(f"cell={folder}").replace("\n", "\n#"),
        name=name,
        reward=reward,
        judge=_JUDGES[reward],
        goal=_GOAL.format(goal=_pose("goal", goal)) if reward == "pose" else "",
        instruction=json.dumps(instruction, ensure_ascii=False),
        steps=steps,
        actions=", ".join((*ARM_ACTIONS, *([GRIPPER_ACTION] if moves else []))),
        start=_pose("start", start),
        noise=noise,
        closed=str(gripper == "closed").lower(),
        reported=str(reward == "task").lower(),
        seen=", ".join(f"state/{n}" for n in states),
    )
    write_new(file, text + (_CLASSIFIER if reward == "classifier" else ""))
    if reward == "task":
        print("a cell that says task.tracked.reports_success: false wins: take that out of it")
    words, steps_left = in_shell(f"cell={folder}", f"task={name}"), []
    taught = {"start": start, **({"goal": goal} if reward == "pose" else {})}
    steps_left += [f"teach part={part}" for part, pose in taught.items() if pose is None]
    if reward == "classifier":
        labels = "classifier.collection.labels=operator"
        steps_left += [f"collect-reward {words} reward=human {labels}", "train-reward"]
        words += " reward.source.path=RUN/checkpoints/reward"
    for step in (*steps_left, f"collect {words}"):
        print(f"next: robot-rl {step}", flush=True)


def _pose(key: str, text: str | None) -> str:
    """Return a pose in the file's syntax, or raise `RobotRLError`."""
    if text is None:
        return "???"
    try:
        pose = json.loads(text)
    except ValueError as error:
        expected = f"{key}=[x,y,z,qx,qy,qz,qw]"
        raise ConfigError(f"{key} cannot be read", got=text, expected=expected) from error
    return str(checked_pose(pose, key, tolerance=1e-3).tolist())
