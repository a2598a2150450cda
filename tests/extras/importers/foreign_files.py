"""Demonstrations as others write them: small files in the layouts of their formats."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from demonstrations import edit

LENGTHS = (6, 4, 8)
"""Actions of the three episodes; the first and the third terminate with a success."""
RATE = 20.0
CAMERA = "observation.images.front"


# What the formats do not say of themselves, and what a person answers.
ANSWERS = {
    "task": "reach",
    "control_rate_hz": "20.0",
    "action_convention": "environment",
    "action_low": "-2",
    "action_high": "2.0",
    "reward": "success",
    "terminated": "success",
    "success": "terminated",
}


def fill(file: Path, blanks: dict[str, str] = ANSWERS, **answers: str) -> Path:
    """Answer what a mapping file asks, and what else is given, as a person with an editor."""
    lines = []
    for line in file.read_text().splitlines():
        key, colon, value = line.partition(":")
        if key.strip() in answers:
            line = f"{key}: {answers[key.strip()]}"
        elif colon and value.split("#")[0].strip() == "???":
            line = f"{key}: {blanks.get(key.strip(), '???')}"
        lines.append(line)
    file.write_text("\n".join(lines))
    return file


def recorded() -> list[dict[str, np.ndarray]]:
    """The episodes: a goal that is reached by actions of -2 to 2, and what they were given for."""
    found = []
    for episode, steps in enumerate(LENGTHS):
        noise = np.random.default_rng(episode)
        action = noise.uniform(-2.0, 2.0, (steps, 2)).astype(np.float32)
        reached = np.zeros(steps, np.bool_)
        reached[-1] = episode != 1
        seen = np.concatenate([np.zeros((1, 2)), action.cumsum(axis=0)]).astype(np.float32)
        found.append(
            {"seen": seen, "action": action, "reached": reached, "reward": reached - np.float32(1)}
        )
    return found


def flat(names: dict[str, str]) -> dict[str, np.ndarray]:
    """All steps one after the other, without the final observations, under other names."""
    return {
        theirs: np.concatenate([e[ours][: len(e["action"])] for e in recorded()])
        for ours, theirs in names.items()
    }


def write_lerobot_21(path: Path) -> None:
    """LeRobot v2.1, as its release 0.3.3 writes it: a file an episode, episodes as JSON lines."""
    (path / "meta").mkdir(parents=True)
    (path / "data/chunk-000").mkdir(parents=True)
    start, lines = 0, []
    for number, episode in enumerate(recorded()):
        count = len(episode["action"])
        frames = np.arange(count)
        table = {
            "observation.state": pa.array(list(episode["seen"][:-1]), pa.list_(pa.float32(), 2)),
            "action": pa.array(list(episode["action"]), pa.list_(pa.float32(), 2)),
            "next.reward": episode["reward"],
            "next.success": episode["reached"],
            "timestamp": (frames / RATE).astype(np.float32),
            "frame_index": frames,
            "episode_index": np.full(count, number),
            "index": start + frames,
            "task_index": np.zeros(count, np.int64),
        }
        pq.write_table(pa.table(table), path / f"data/chunk-000/episode_{number:06d}.parquet")
        lines.append({"episode_index": number, "tasks": ["reach the goal"], "length": count})
        start += count
    features = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
        "action": {"dtype": "float32", "shape": [2], "names": {"motors": ["pan", "tilt"]}},
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
        "next.success": {"dtype": "bool", "shape": [1], "names": None},
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    }
    information = {
        "codebase_version": "v2.1",
        "robot_type": "pan_tilt",
        "fps": int(RATE),
        "total_episodes": len(LENGTHS),
        "chunks_size": 1000,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "features": features,
    }
    (path / "meta/info.json").write_text(json.dumps(information))
    (path / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, lines)))


def write_robomimic(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        declared = {"env_name": "Reach", "env_kwargs": {"control_freq": RATE}}
        file.create_group("data").attrs["env_args"] = json.dumps(declared)
        for number, episode in enumerate(recorded()):
            group = file.create_group(f"data/demo_{number}")
            group["actions"], group["rewards"] = episode["action"], episode["reward"]
            group["dones"] = episode["reached"].astype(np.int64)
            group["states"] = np.zeros((len(episode["action"]), 9))
            group["obs/place"], group["next_obs/place"] = episode["seen"][:-1], episode["seen"][1:]
        file["mask/train"], file["mask/valid"] = [b"demo_0", b"demo_2"], [b"demo_1"]


def write_minari(path: Path) -> None:
    import h5py

    (path / "data").mkdir(parents=True)
    space = {"type": "Box", "dtype": "float32", "shape": [2], "low": [-2, -2], "high": [2, 2]}
    declared = {"env_spec": json.dumps({"id": "Reach-v0"}), "action_space": json.dumps(space)}
    (path / "data/metadata.json").write_text(json.dumps(declared))
    with h5py.File(path / "data/main_data.hdf5", "w") as file:
        for number, episode in enumerate(recorded()):
            group = file.create_group(f"episode_{number}")
            group["observations"], group["actions"] = episode["seen"], episode["action"]
            group["rewards"] = episode["reward"].astype(np.float64)
            group["terminations"] = episode["reached"]
            group["truncations"] = ~episode["reached"]
            # The info of the reset comes first.
            group["infos/success"] = np.concatenate([[False], episode["reached"]])


def write_d4rl(path: Path) -> None:
    import h5py

    names = {"seen": "observations", "action": "actions", "reward": "rewards"}
    with h5py.File(path, "w") as file:
        for name, column in flat({**names, "reached": "terminals"}).items():
            file[name] = column
        file["timeouts"] = np.zeros(sum(LENGTHS), np.bool_)
        file["timeouts"][sum(LENGTHS[:2]) - 1] = True
        file["metadata/algorithm"] = "scripted"
        file["metadata/policy/bias"] = np.zeros(256)


def write_npz(path: Path) -> None:
    names = {"seen": "obs", "action": "action", "reward": "reward", "reached": "success"}
    np.savez(path, episode_ends=np.cumsum(LENGTHS), **flat(names))


def write_npz_folder(path: Path) -> None:
    path.mkdir()
    for number, episode in enumerate(recorded()):
        names = {"seen": "obs/place", "action": "action", "reached": "success"}
        columns = {theirs: episode[ours] for ours, theirs in names.items()}
        np.savez(path / f"take_{number + 8}.npz", **columns)


def write_video(path: Path, pictures: list[np.ndarray]) -> None:
    """One more camera of a LeRobot dataset: uint8 (height, width, 3) each."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=int(RATE), options={"tune": "zerolatency"})
        stream.height, stream.width, _ = pictures[0].shape
        stream.pix_fmt = "yuv420p"
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


def pictures(count: int) -> list[np.ndarray]:
    """Pictures that get brighter from step to step."""
    return [np.full((32, 48, 3), 20 + 10 * step, np.uint8) for step in range(count)]


def write_lerobot_21_with_camera(path: Path) -> None:
    write_lerobot_21(path)
    template = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    feature = {"dtype": "video", "shape": [32, 48, 3], "names": ["height", "width", "channels"]}
    edit(path / "meta/info.json", lambda c: c["features"].update({CAMERA: feature}))
    edit(path / "meta/info.json", lambda c: c.update(video_path=template))
    for number, steps in enumerate(LENGTHS):
        file = f"videos/chunk-000/{CAMERA}/episode_{number:06d}.mp4"
        write_video(path / file, pictures(steps))
    (path / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "reach the goal"}\n')


def write_lerobot_30(path: Path) -> None:
    """LeRobot v3.0, as its release 0.4.4 writes it: all episodes in one file, and one video."""
    write_lerobot_21_with_camera(path)
    tables = [pq.read_table(file) for file in sorted(path.glob("data/*/*.parquet"))]
    for file in [*path.glob("data/*/*.parquet"), *path.glob("videos/*/*/*.mp4")]:
        file.unlink()
    pq.write_table(pa.concat_tables(tables), path / "data/chunk-000/file-000.parquet")
    steps = [picture for count in LENGTHS for picture in pictures(count)]
    write_video(path / f"videos/{CAMERA}/chunk-000/file-000.mp4", steps)
    ends = np.cumsum(LENGTHS)
    starts, none = ends - LENGTHS, np.zeros(len(LENGTHS), np.int64)
    records = {
        "episode_index": np.arange(len(LENGTHS)),
        "tasks": [["reach the goal"]] * len(LENGTHS),
        "length": np.array(LENGTHS),
        "data/chunk_index": none,
        "data/file_index": none,
        "dataset_from_index": starts,
        "dataset_to_index": ends,
        f"videos/{CAMERA}/chunk_index": none,
        f"videos/{CAMERA}/file_index": none,
        f"videos/{CAMERA}/from_timestamp": starts / RATE,
    }
    (path / "meta/episodes/chunk-000").mkdir(parents=True)
    pq.write_table(pa.table(records), path / "meta/episodes/chunk-000/file-000.parquet")
    tasks = pa.table({"task_index": [0], "__index_level_0__": ["reach the goal"]})
    pq.write_table(tasks, path / "meta/tasks.parquet")
    (path / "meta/tasks.jsonl").unlink()
    (path / "meta/episodes.jsonl").unlink()
    template = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    video = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    changed = {"codebase_version": "v3.0", "data_path": template, "video_path": video}
    edit(path / "meta/info.json", lambda c: c.update(changed))


def write_zarr(path: Path, zarr_format: int, brightest: float = 255.0) -> None:
    """As diffusion_policy writes it; colours are floats, as in its `pusht_cchi_v7_replay.zarr`."""
    import zarr

    root = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    columns = flat({"seen": "state", "action": "action", "reached": "success"})
    shade = np.concatenate([pictures(steps) for steps in LENGTHS]).astype(np.float32)
    columns["img"] = shade * (brightest / 255.0)
    with zarr.config.set({"array.write_empty_chunks": True}):
        for name, column in columns.items():
            chunks = (5, *column.shape[1:])
            root.create_array(f"data/{name}", data=column, chunks=chunks)
        root.create_array("meta/episode_ends", data=np.cumsum(LENGTHS))
