"""`robot-rl export-policy`: policies as ONNX files, for a robot computer without torch."""

from robot_rl.commands.table import RUNS
from robot_rl.plugins import Command, Option, Plugin
from robot_rl.run import POLICIES

_COMMANDS = {
    "export-policy": Command(
        "robot_rl.extras.export.write_onnx:run",
        "Write a policy as ONNX files, for a robot computer without torch.",
        "It is the policy that `train` has deployed, or the one that `which` names; RUN may be a"
        " checkpoint too. OUT is made: the files, checked to be equal to the policy, the"
        " description policy.json, the run's configuration and CARD.md, which says where the policy"
        " comes from and how good it was found to be. robot-rl run OUT plays it; it"
        " needs the extra onnx-runtime, and this command the extra export.",
        arguments=("RUN", "OUT"),
        options=(Option("which", "which policy of the run", "deployed", POLICIES), RUNS),
        example="robot-rl export-policy runs/latest OUT which=student",
    ),
}

_LOAD = "robot_rl.extras.export.exported:load"

PLUGIN = Plugin(commands=_COMMANDS, policy_formats={"plan.onnx": _LOAD, "act.onnx": _LOAD})
