"""Paths and limits of the LeRobot v3.0 layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

VERSION = "v3.0"
INFO_PATH = "meta/info.json"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
STATISTICS_PATH = "meta/stats.json"
TASKS_PATH = "meta/tasks.parquet"
OWN_PATH = "meta/robot_rl.json"

FILES_PER_CHUNK = 1000
DATA_FILE_MEGABYTES = 100
VIDEO_FILE_MEGABYTES = 200


@dataclass(frozen=True)
class Place:
    """Which of the numbered files."""

    chunk: int = 0
    file: int = 0

    def following(self) -> Place:
        """Return the next one."""
        if self.file + 1 < FILES_PER_CHUNK:
            return Place(self.chunk, self.file + 1)
        return Place(self.chunk + 1, 0)

    def path(self, template: str, **values: str) -> PurePosixPath:
        """Fill in a path template, relative to the dataset's directory."""
        return PurePosixPath(
            template.format(chunk_index=self.chunk, file_index=self.file, **values)
        )
