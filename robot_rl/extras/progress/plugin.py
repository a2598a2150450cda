"""`robot-rl annotate`: scores from models that judge a robot's progress to the goal."""

from robot_rl.plugins import Command, Plugin

_COMMANDS = {
    "annotate": Command(
        "robot_rl.extras.progress.progress_model:annotate",
        "Have a progress model judge the episodes of a store.",
        "STORE is a store or a run directory whose replay server runs; the model listens at"
        " ADDRESS, tcp://127.0.0.1:PORT, in a process of its own. Its scores become the annotations"
        " progress, progress_confidence and done: reward.annotation=progress learns from it.",
        arguments=("STORE", "ADDRESS"),
        example="robot-rl annotate runs/latest tcp://127.0.0.1:5600",
    ),
}

PLUGIN = Plugin(commands=_COMMANDS)
