"""Episodes with pictures, as `robot-rl collect` would write them, for the interchange tests."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import numpy as np

from robot_rl import cli
from robot_rl.data.episodes import EpisodeWriter
from robot_rl.data.schema import Field, Row, RowSchema, row_schema

FRONT_SHAPE, WRIST_SHAPE = (64, 80, 3), (33, 47, 3)
PLACES = (("front", FRONT_SHAPE, 110), ("left/wrist", WRIST_SHAPE, 130))
RATE = 12.5
INSTRUCTIONS = ("insert the peg", "", "put it in — légèrement")
LENGTHS = (7, 1, 12)
"""Actions of the three episodes; the first and the second terminate, the third is truncated."""

# Files of the exported dataset.
INFO = "meta/info.json"
DATA = "data/chunk-000/file-000.parquet"
RECORDS = "meta/episodes/chunk-000/file-000.parquet"
FRONT = "videos/observation.images.front/chunk-000/file-000.mp4"


def make_schema() -> RowSchema:
    fields = [
        Field("state/tcp_pose", "float32", (7,)),
        Field("state/gripper_position", "float32", (1,)),
        Field("state/object_poses", "float32", (2, 7)),
        Field("state/encoder_ticks", "int32", (3,)),
        Field("images/front", "uint8", FRONT_SHAPE),
        Field("images/left/wrist", "uint8", WRIST_SHAPE),
    ]
    return row_schema("peg_insert", fields, ("x", "y", "yaw"), RATE)


def picture(checkout: Path) -> np.ndarray:
    """A real picture, uint8 RGB."""
    pixels = matplotlib.image.imread(checkout / "docs" / "tasks.png")[..., :3]
    return np.round(255 * pixels).astype(np.uint8)


def make_rows(episode: int, schema: RowSchema, scene: np.ndarray) -> list[Row]:
    noise = np.random.default_rng(episode)
    steps, terminates = LENGTHS[episode], episode < 2
    rows = []
    for step in range(steps + 1):
        row: Row = {f.name: _noise(noise, f) for f in schema.fields}
        ends, is_last = step == steps - 1, step == steps
        for name in ("terminated", "truncated", "success", "is_last", "intervened", "clamped"):
            row[name] = np.bool_(False)
        if is_last:
            for name in ("action", "policy_action", "reward"):
                row[name] = np.zeros_like(row[name])
        row["is_last"] = np.bool_(is_last)
        row["terminated"] = row["success"] = np.bool_(ends and terminates)
        row["truncated"] = np.bool_(ends and not terminates)
        row["intervened"], row["clamped"] = np.bool_(step % 3 == 1), np.bool_(step % 4 == 1)
        row["source"] = np.uint8(2 * (step % 3 == 1))
        row["episode_step"] = np.int32(step)
        row["stamp_observation"] = np.int64(1_790_000_000_123_456_789 + step * 80_000_000)
        row["stamp_action"] = row["stamp_observation"] + 1_234_567
        for name, (height, width, _), top in PLACES:
            left = 690 + 20 * episode + 8 * step
            row[f"images/{name}"] = scene[top : top + height, left : left + width].copy()
        rows.append(row)
    return rows


def write_demonstrations(path: Path, checkout: Path) -> Path:
    schema, scene = make_schema(), picture(checkout)
    with EpisodeWriter(path, schema, {"robot": "sim", "operator": "Ada"}) as writer:
        for episode in range(len(LENGTHS)):
            writer.append(
                make_rows(episode, schema, scene),
                seed=2**40 + episode,
                instruction=INSTRUCTIONS[episode],
                success=episode < 2,
                source=(0, 2, 1)[episode],
            )
    return path


def _noise(noise: np.random.Generator, field: Field) -> np.ndarray:
    if np.dtype(field.dtype).kind == "f":
        return noise.uniform(-1, 1, field.shape).astype(field.dtype)
    high = min(np.iinfo(field.dtype).max, 2**40) if field.dtype != "bool" else 1
    return np.asarray(noise.integers(0, high, field.shape), field.dtype)


def run(*words: object) -> int:
    return cli.main([str(word) for word in words])


def edit(path: Path, change: Callable[[dict], object]) -> None:
    """Change the content of a JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def cut_file(path: Path, share: float = 0.5) -> None:
    os.truncate(path, int(path.stat().st_size * share))
