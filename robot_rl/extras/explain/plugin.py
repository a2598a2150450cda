"""`robot-rl explain`, and its warnings before a policy learns on a robot."""

from robot_rl.commands.table import RUNS
from robot_rl.plugins import Command, Option, Plugin

_COMMANDS = {
    "explain": Command(
        "robot_rl.extras.explain.explain:run",
        "Say why a run does not learn: named causes, each with its figure.",
        "Looks at the demonstrations, rows and records of RUN, by default the latest: cameras,"
        " states and units, what commands have moved, rewards and labels, and the settings of"
        " learning. Prints causes, the likeliest first, with what to do next, and what is not one."
        " Reads only, and works while the run goes on.",
        arguments=("[RUN]",),
        options=(Option("json", "one JSON object in its place", False), RUNS),
        example="robot-rl explain runs/latest",
    ),
}

PLUGIN = Plugin(commands=_COMMANDS, checks=("robot_rl.extras.explain.explain:warnings",))
