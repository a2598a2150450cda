"""The operator's console of a run, in a browser."""

from robot_rl.plugins import Command, Plugin

_COMMANDS = {
    "console": Command(
        "robot_rl.extras.console.console:run",
        "The operator's console of a run, in a browser.",
        "Shows the cameras, the robot in 3-D, curves and episodes, and has the buttons to label,"
        " pause, take over and stop. It may be opened and closed at any time, and finds the actor"
        " by itself, whichever process that is. Ctrl-C closes it; the run goes on.",
        keys="console.host console.port console.token_file console.certificate console.model run"
        " runs_directory",
    ),
}

PLUGIN = Plugin(commands=_COMMANDS)
