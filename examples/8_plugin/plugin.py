"""Adds a command, a check before learning on a robot, and a file after each run."""

from robot_rl.commands.table import RUNS
from robot_rl.plugins import Command, Plugin

_ATTEMPTS = Command(
    "attempts:show",
    "Print how many episodes of a run succeeded.",
    "It counts the episodes of online learning in RUN, by default the latest.",
    arguments=("[RUN]",),
    options=(RUNS,),
    example="robot-rl attempts runs/latest",
)

PLUGIN = Plugin(
    commands={"attempts": _ATTEMPTS},
    checks=("attempts:few_demonstrations",),
    after_run={"attempts": "attempts:write"},
)
