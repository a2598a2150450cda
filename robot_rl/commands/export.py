"""`robot-rl export`: write the episodes of a store, run or dataset as a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from robot_rl.data.episodes import Episode, NotADataset
from robot_rl.data.schema import SOURCE_NAMES
from robot_rl.data.transfer import (
    DatasetEpisodes,
    DatasetSink,
    EpisodeSource,
    OpenSink,
    Selection,
    write_episodes,
)
from robot_rl.plugins import added, resolve
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.processes.signals import stop_event
from robot_rl.replay.catalogue import is_store
from robot_rl.replay.store_reader import StoreEpisodes
from robot_rl.run import CONFIG_FILE, RunDirectory


def export(store: str, out: str, *, format: str, source: str, success: str) -> None:
    """Write the sealed episodes of a store, or the episodes of a dataset, to a new directory."""
    selection = Selection(
        None if source == "all" else SOURCE_NAMES.index(source),
        {"true": True, "false": False, "all": None}[success],
    )
    place = store_at(Path(store))
    if is_store(place):
        episodes = StoreEpisodes(place, selection)
        transfer(episodes, out, "exported", format)
        if episodes.open_episodes:
            print(f"{episodes.open_episodes} open episodes left out")
        if episodes.left_out:
            print(f"{episodes.left_out} episodes left out: evicted meanwhile, or without a step")
        return
    if (Path(store) / CONFIG_FILE).is_file():
        place = RunDirectory(Path(store)).demonstrations
    if not (place / "zarr.json").is_file():
        raise NotADataset(
            f"there are no episodes to export at {place}",
            expected="a store, a run directory or an episode dataset",
        )
    transfer(DatasetEpisodes(place, selection), out, "exported", format)


@contextmanager
def stoppable(
    episodes: int, phase: str
) -> Iterator[tuple[Callable[[Episode], None], list[tuple[int, bool]]]]:
    """Yield a callback for after each episode, with the steps and success of those so far.

    It shows progress, and ends the work on Ctrl-C.
    """
    seen: list[tuple[int, bool]] = []

    def on_episode(episode: Episode) -> None:
        seen.append((len(episode.rows) - 1, episode.success))
        progress.update(len(seen))
        # Stop only between episodes: zarr's threads would write files again that the cleanup after
        # an interruption removes.
        if stop.is_set():
            raise KeyboardInterrupt

    with stop_event() as stop, WorkProgress(episodes, "episodes") as progress:
        progress.phase(phase)
        yield on_episode, seen


def transfer(source: EpisodeSource, out: str, done: str, format: str = "zarr") -> None:
    """Write a source to `out`, and print what was `done`."""
    sink: OpenSink = DatasetSink
    if format != "zarr":
        sink = resolve(added("dataset_formats")[format].create)
    with stoppable(len(source), f"writing {out}") as (on_episode, seen):
        write_episodes(source, Path(out), sink, on_episode)
    steps, successes = map(sum, zip(*seen, strict=True))
    print(
        f"{done} {len(seen)} episodes ({steps:,} steps, {successes} successful) of task"
        f" {source.schema.task} to {out} ({format})"
    )


def store_at(path: Path) -> Path:
    """Return the store of a run directory; any other path unchanged."""
    return RunDirectory(path).store if (path / CONFIG_FILE).is_file() else path
