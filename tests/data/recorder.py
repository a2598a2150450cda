"""Known episodes, and a process that records them: its content follows from the episode's index.

As a program it forks one recorder per line of standard input. Modules are imported once, and zarr
starts its threads only in the children, so that many recorders start quickly.
"""

import os
import sys

import numpy as np

from robot_rl.data.episodes import EpisodeWriter
from robot_rl.data.schema import Field, RowSchema, row_schema


def make_schema(task: str = "reach", rate: float = 10.0, pose_size: int = 7) -> RowSchema:
    fields = [Field("state/tcp_pose", "float32", (pose_size,))]
    return row_schema(task, fields, ("x", "y"), rate)


def episode_length(index: int) -> int:
    """Rows of episode `index`, final observation included."""
    return 2 + index * 7 % 13


def make_rows(index: int, schema: RowSchema | None = None, length: int | None = None):
    schema = schema or make_schema()
    length = length or episode_length(index)
    noise = np.random.default_rng(index)
    rows = []
    for step in range(length):
        row = {f.name: np.zeros(f.shape, f.dtype) for f in schema.fields}
        last = step == length - 1
        row["state/tcp_pose"] = noise.random(row["state/tcp_pose"].shape, np.float32) + index
        row["action"] = row["action"] if last else noise.random(2, np.float32)
        row["episode_step"] = np.int32(step)
        row["is_last"] = np.bool_(last)
        row["reward"] = np.float32(step == length - 2)
        rows.append(row)
    return rows


def expected_episode(index: int):
    rows = make_rows(index)
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def append_known(writer: EpisodeWriter) -> int:
    index = len(writer)
    return writer.append(
        make_rows(index),
        seed=100 + index,
        instruction=f"épisode {index}",
        success=index % 3 == 0,
        source=index % 2,
    )


def record_forever(path: str) -> None:
    with EpisodeWriter(path, make_schema()) as writer:
        while True:
            index = append_known(writer)
            os.write(1, f"committed {index + 1}\n".encode())


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            record_forever(line.strip())
        os.write(1, f"recorder {child}\n".encode())
        os.waitpid(child, 0)
        os.write(1, b"ended\n")


if __name__ == "__main__":
    main()
