"""`robot-rl task`: writes the file of a task that only a real robot does, with comments."""

from __future__ import annotations

import json
import re
from pathlib import Path

from robot_rl.commands.cell import write_new
from robot_rl.config import ConfigError, own_file
from robot_rl.env.robot import ARM_ACTIONS, GRIPPER_ACTION
from robot_rl.errors import in_shell
from robot_rl.processes.resources import choice_file
from robot_rl.safety.commands import checked_pose

_TEXT = """\
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
    _target_: robot_rl.env.task.Tracked
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
_SEEN = ("tcp_pose", "tcp_velocity", "tcp_wrench", "target_lead")
_OPEN = "???"


def write(
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
    """Write `configs/task/NAME.yaml` of FOLDER/NAME; `ConfigError` where it is there, or is wrong.

    Says which commands come next.
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
    text = _TEXT.format(
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
        seen=", ".join(f"state/{n}" for n in (*_SEEN, *(["gripper_position"] if moves else []))),
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
    """A pose as it is written into the file; `RobotRLError` where it is none."""
    if text is None:
        return _OPEN
    try:
        pose = json.loads(text)
    except ValueError as error:
        expected = f"{key}=[x,y,z,qx,qy,qz,qw]"
        raise ConfigError(f"{key} cannot be read", got=text, expected=expected) from error
    return str(checked_pose(pose, key, tolerance=1e-3).tolist())
