"""`robot-rl export` and `robot-rl import`: episodes between stores, datasets and LeRobot."""

from __future__ import annotations

from pathlib import Path

from robot_rl.data import lerobot
from robot_rl.data.episodes import NotADataset
from robot_rl.data.schema import SOURCE_NAMES
from robot_rl.data.transfer import (
    DatasetEpisodes,
    DatasetSink,
    Episode,
    EpisodeSource,
    OpenSink,
    Selection,
    write_episodes,
)
from robot_rl.errors import RobotRLError
from robot_rl.progress import WorkProgress
from robot_rl.replay.export import StoreEpisodes
from robot_rl.run import CONFIG_FILE, RunDirectory
from robot_rl.signals import stop_event

_SINKS: dict[str, OpenSink] = {"zarr": DatasetSink, "lerobot": lerobot.create_lerobot}
_OUTCOMES = {"true": True, "false": False, "all": None}
_ALL = "all"


def export(
    store: str, out: str, *, format: str, table: str | None, source: str, success: str
) -> None:
    """Write the sealed episodes of a store, or those of a dataset, to a new directory.

    Args:
        store: A store, a run directory or an episode dataset.
        out: The directory to make.
        format: ``zarr`` or ``lerobot``.
        table: Name of the store's table; None takes the only one.
        source: ``demo``, ``policy``, ``intervention`` or ``all``.
        success: ``true``, ``false`` or ``all``.

    Raises:
        DatasetExists: There is something at `out`.
        NothingToWrite: No episode is whole and wanted.
        RobotRLError: The episodes cannot be read or written.
    """
    selection = Selection(
        None if source == _ALL else SOURCE_NAMES.index(source), _OUTCOMES[success]
    )
    place = _place(Path(store))
    if (place / "data.mdb").is_file():
        with StoreEpisodes(place, table, selection) as episodes:
            _transfer(episodes, out, format, "exported")
            if episodes.open_episodes:
                print(f"{episodes.open_episodes} open episodes left out")
            if episodes.left_out:
                print(
                    f"{episodes.left_out} episodes left out: evicted meanwhile, or without a step"
                )
        return
    if table is not None:
        raise RobotRLError("a dataset has no tables", got=f"table={table}", hint="leave it out")
    _transfer(DatasetEpisodes(place, selection), out, format, "exported")


def import_dataset(path: str, out: str) -> None:
    """Write the episodes of a LeRobot or an episode dataset to a new episode dataset.

    Args:
        path: What `robot-rl export` wrote.
        out: The directory to make; it serves as ``dataset=`` of the other stages.

    Raises:
        DatasetExists: There is something at `out`.
        RobotRLError: The dataset cannot be read, or nothing can be written.
    """
    place = Path(path)
    source: EpisodeSource = (
        DatasetEpisodes(place, Selection())
        if (place / "zarr.json").is_file()
        else lerobot.open_lerobot(place)
    )
    _transfer(source, out, "zarr", "imported")


def _transfer(source: EpisodeSource, out: str, format: str, done: str) -> None:
    """Write a source to `out` and say what was written."""
    steps = episodes = successes = 0

    def count(episode: Episode) -> None:
        nonlocal steps, episodes, successes
        episodes += 1
        steps += len(episode.rows) - 1
        successes += episode.success
        progress.update(episodes)
        # Only here: while an episode is written, threads of zarr would make the files anew that
        # are removed after an interruption.
        if stop.is_set():
            raise KeyboardInterrupt

    with stop_event() as stop, WorkProgress(len(source), "episodes") as progress:
        progress.phase(f"writing {out}")
        write_episodes(source, Path(out), _SINKS[format], count)
    print(
        f"{done} {episodes} episodes ({steps:,} steps, {successes} successful) of task"
        f" {source.schema.task} to {out} ({format})"
    )


def _place(path: Path) -> Path:
    """Return the store of a run directory, or its demonstrations where it has none."""
    if (path / CONFIG_FILE).is_file():
        run = RunDirectory(path)
        return run.store if (run.store / "data.mdb").is_file() else run.demonstrations
    if not any((path / name).is_file() for name in ("data.mdb", "zarr.json")):
        raise NotADataset(
            f"there are no episodes to export at {path}",
            expected="a store, a run directory or an episode dataset",
        )
    return path
