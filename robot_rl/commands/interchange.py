"""`robot-rl export`, `import` and `annotate`: episodes of stores, datasets and LeRobot."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from robot_rl.data import lerobot
from robot_rl.data.episodes import Episode, NotADataset, is_ours
from robot_rl.data.foreign import open_foreign
from robot_rl.data.foreign.mapped import MappedEpisodes
from robot_rl.data.foreign.mapping import propose
from robot_rl.data.schema import ANNOTATION, SOURCE_NAMES
from robot_rl.data.transfer import (
    DatasetEpisodes,
    DatasetSink,
    EpisodeSource,
    OpenSink,
    Selection,
    write_episodes,
)
from robot_rl.errors import RobotRLError, in_shell
from robot_rl.processes.progress import WorkProgress
from robot_rl.processes.signals import stop_event
from robot_rl.replay.catalogue import is_store
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.protocol import Annotations, Opened
from robot_rl.replay.store_reader import StoreEpisodes
from robot_rl.rewards.progress import RemoteProgressModel, annotate_progress
from robot_rl.run import CONFIG_FILE, RunDirectory
from robot_rl.wire.endpoint import wait_for_endpoint

_SINKS: dict[str, OpenSink] = {"zarr": DatasetSink, "lerobot": lerobot.create_lerobot}
_OUTCOMES = {"true": True, "false": False, "all": None}
_SERVER_SECONDS = 2.0
_ROOM_SECONDS = 60.0
_FIRST_ACTOR = 1 << 31  # of imports; those of actors are counted from 0


def export(store: str, out: str, *, format: str, source: str, success: str) -> None:
    """Write the sealed episodes of a store, or those of a dataset, to a new directory."""
    wanted = None if source == "all" else SOURCE_NAMES.index(source)
    selection = Selection(wanted, _OUTCOMES[success])
    place = _store_at(Path(store))
    if is_store(place):
        episodes = StoreEpisodes(place, selection)
        _transfer(episodes, out, format, "exported")
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
    _transfer(DatasetEpisodes(place, selection), out, format, "exported")


def import_dataset(path: str, out: str, *, map: str | None) -> None:
    """Write the episodes of a dataset to a new episode dataset, or to a store whose server runs.

    Without the `map` that demonstrations of others need, a proposal for it is written beside `out`.
    """
    place = Path(path)
    if not place.exists():
        raise NotADataset(
            "there is nothing to import",
            got=f"no folder {place}",
            hint="name a dataset that `robot-rl export` or somebody else wrote",
        )
    store = _store_at(Path(out))
    live = is_store(store) or store != Path(out)
    source: EpisodeSource
    if is_ours(place):
        source = DatasetEpisodes(place, Selection())
    elif (place / lerobot.OWN_PATH).is_file():
        source = lerobot.open_lerobot(place)
    elif live:
        raise RobotRLError(
            "demonstrations of others do not go into a store at once",
            hint="import them into a new dataset, and that one into the store",
        )
    else:
        _import_foreign(place, out, map)
        return
    if map is not None:
        raise RobotRLError(
            "only demonstrations of others need a mapping", got=f"map={map}", hint="leave it out"
        )
    if live:
        _import_into(source, store)
    else:
        _transfer(source, out, "zarr", "imported")


def _import_foreign(place: Path, out: str, map: str | None) -> None:
    if map is None:
        file = Path(f"{Path(out)}".removesuffix(".zarr") + ".map.yaml")
        propose(place, Path(out), file, open_foreign(place))
        print(f"fill in {file}, then: {in_shell('robot-rl', 'import', place, out, f'map={file}')}")
        return
    source = MappedEpisodes(open_foreign(place), Path(map))
    _transfer(source, out, "zarr", "imported")
    print("\n".join(f"    {line}" for line in source.report))


def annotate(store: str, address: str) -> None:
    """Have the progress model that listens at an address judge the sealed episodes of a store."""
    place = _store_at(Path(store))
    if not is_store(place):
        raise RobotRLError(f"there is no store at {place}", expected="a store or a run directory")
    with stop_event() as stop, RemoteProgressModel(address) as model, ReplayClient(place) as client:
        count = annotate_progress(place, client, model, stop)
        print(f"judged {count} episodes with version {model.version} of the model at {address}")
        if stop.is_set():
            print("the same command judges the others")
            raise KeyboardInterrupt


def _import_into(source: EpisodeSource, store: Path) -> None:
    wait_for_endpoint(store, _SERVER_SECONDS)
    with (
        _stoppable(len(source), f"sending to the server of {store}") as (on_episode, _),
        ReplayClient(store) as client,
    ):
        done = import_episodes(source, client, on_episode)
    before = done["episodes"] - done["new_episodes"]
    annotated = f", {count:,} annotations" if (count := done["new_annotations"]) else ""
    there = f"; {before} episodes were there, or begun, before" if before else ""
    print(
        f"imported {done['new_episodes']} episodes ({done['new_rows']:,} rows{annotated}) into"
        f" {store}{there}"
    )


@contextmanager
def _stoppable(
    episodes: int, phase: str
) -> Iterator[tuple[Callable[[Episode], None], list[tuple[int, bool]]]]:
    """Give what is called after each episode: it shows progress, and ends the work on Ctrl-C.

    And the steps and the success of each episode that it has seen.
    """
    seen: list[tuple[int, bool]] = []

    def on_episode(episode: Episode) -> None:
        seen.append((len(episode.rows) - 1, episode.success))
        progress.update(len(seen))
        # Only here: while an episode is written, threads of zarr would make the files anew that
        # are removed after an interruption.
        if stop.is_set():
            raise KeyboardInterrupt

    with stop_event() as stop, WorkProgress(episodes, "episodes") as progress:
        progress.phase(phase)
        yield on_episode, seen


def _transfer(source: EpisodeSource, out: str, format: str, done: str) -> None:
    """Write a source to `out`, and say what was written."""
    with _stoppable(len(source), f"writing {out}") as (on_episode, seen):
        write_episodes(source, Path(out), _SINKS[format], on_episode)
    steps, successes = map(sum, zip(*seen, strict=True))
    print(
        f"{done} {len(seen)} episodes ({steps:,} steps, {successes} successful) of task"
        f" {source.schema.task} to {out} ({format})"
    )


def _store_at(path: Path) -> Path:
    """The store of a run directory; what else is there is taken for one."""
    return RunDirectory(path).store if (path / CONFIG_FILE).is_file() else path


def import_episodes(
    source: EpisodeSource,
    client: ReplayClient,
    on_episode: Callable[[Episode], None] = lambda _: None,
) -> Counter[str]:
    """Send all episodes of a source, and their annotations, to the server of a client.

    A source is known by its first episode, its columns and its length, and has a session of its
    own in the store: one that was interrupted goes on where it stood, and one that is there is not
    added again. `on_episode` is called after each. Gives counts
    of ``episodes``, and of ``new_episodes``, ``new_rows`` and ``new_annotations``.

    Raises:
        SchemaMismatch: The store has other columns; names the field.
        SpoolFull: There is no room; what was sent stays, and the import can be repeated.
        ServerUnreachable: The server went away and did not come back in time.
        DatasetError: The source cannot be read.
    """
    done, following, schema = Counter[str](), 0, source.schema.without_annotations
    opened: Opened | None = None
    for episode in source.episodes():
        if opened is None:
            token = _token(source, episode)
            actor, facts = _FIRST_ACTOR + int(token[:7], 16), dict(source.metadata)
            opened = client.open_session(schema, actor, owner=token, metadata=facts)
        there = min(max(opened.next_sequence - following, 0), len(episode.rows))
        if there < len(episode.rows):
            rows = [{f.name: row[f.name] for f in schema.fields} for row in episode.rows]
            facts = {"task": schema.task, "seed": episode.seed, "instruction": episode.instruction}
            client.append_episode(rows, facts, _ROOM_SECONDS, stored=there)
        new_rows = len(episode.rows) - there
        done.update(episodes=1, new_episodes=int(there == 0), new_rows=new_rows)
        sequences = np.arange(following, following + len(episode.rows))
        for annotation in source.schema.annotations:
            name = f"{ANNOTATION}{annotation}"
            valid, versions = episode.rows[f"{name}/valid"], episode.rows[f"{name}/version"]
            for version in np.unique(versions[valid]).tolist():
                at = valid & (versions == version)
                client.flush(_ROOM_SECONDS)  # only stored rows can be annotated
                values = episode.rows[f"{name}/value"][at]
                new = Annotations(opened.place, annotation, version, sequences[at], values)
                done["new_annotations"] += client.annotate(new)
        following += len(episode.rows)
        on_episode(episode)
    client.flush(_ROOM_SECONDS)
    return done


def _token(source: EpisodeSource, first: Episode) -> str:
    schema = source.schema.without_annotations
    digest = hashlib.sha256(schema.to_json().encode())
    digest.update(f"{len(source)} {first.seed} {first.instruction}".encode())
    for column in schema.fields:
        digest.update(np.ascontiguousarray(first.rows[column.name]).tobytes())
    return digest.hexdigest()[:32]
