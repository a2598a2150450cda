"""Reader and writer for datasets in LeRobot's layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robot_rl.plugins import DatasetFormat, Plugin

if TYPE_CHECKING:
    from robot_rl.data.schema import RowSchema
    from robot_rl.extras.lerobot.lerobot_reader import LeRobotEpisodes
    from robot_rl.extras.lerobot.lerobot_writer import LeRobotSink


def open_lerobot(path: Path) -> LeRobotEpisodes:
    """Open a dataset from `robot-rl export`; `MissingExtra` if packages are not installed."""
    from robot_rl.extras.lerobot.layout import require_packages

    require_packages()
    from robot_rl.extras.lerobot.lerobot_reader import LeRobotEpisodes

    return LeRobotEpisodes(path)


def create_lerobot(path: Path, schema: RowSchema, metadata: Mapping[str, Any]) -> LeRobotSink:
    """Start a dataset in an empty directory; `MissingExtra` if packages are not installed."""
    from robot_rl.extras.lerobot.layout import require_packages

    require_packages()
    from robot_rl.extras.lerobot.lerobot_writer import LeRobotSink

    return LeRobotSink(path, schema, metadata)


PLUGIN = Plugin(
    dataset_formats={
        "lerobot": DatasetFormat(
            title="LeRobot",
            marker="meta/robot_rl.json",
            open=f"{__name__}:open_lerobot",
            create=f"{__name__}:create_lerobot",
        )
    }
)
