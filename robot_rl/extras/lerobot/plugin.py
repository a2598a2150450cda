"""Datasets in the layout of LeRobot."""

from robot_rl.plugins import DatasetFormat, Plugin

_FORMAT = DatasetFormat(
    title="LeRobot",
    marker="meta/robot_rl.json",
    open="robot_rl.extras.lerobot.layout:open_lerobot",
    create="robot_rl.extras.lerobot.layout:create_lerobot",
)

PLUGIN = Plugin(dataset_formats={"lerobot": _FORMAT})
