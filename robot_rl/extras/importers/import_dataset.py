"""`robot-rl import`: imports own and foreign demonstrations, to a dataset or a running store.

Foreign formats: HDF5 of robomimic 0.3, of Minari 0.5 and of D4RL (`hdf5`), the zarr of
diffusion_policy (`zarr_files`), NumPy's `.npz` (`arrays`), MCAP of ROS 2 topics (`mcap`), and
LeRobot: v3.0 as of release 0.4.4, v2.1 as of 0.3.3, and v2.0 (`lerobot_frames`). Each reader
returns raw columns, and reports unreadable ones with the reason: a damaged part never hides an
intact one. The user's mapping file (`mapping`) defines the columns, and `mapped` makes rows by it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from robot_rl.commands.export import stoppable, store_at, transfer
from robot_rl.data.episode_files import inside
from robot_rl.data.episodes import Episode, NotADataset, is_ours
from robot_rl.data.schema import ANNOTATION
from robot_rl.data.transfer import DatasetEpisodes, EpisodeSource, Selection
from robot_rl.errors import RobotRLError, in_shell
from robot_rl.extras.importers.arrays import open_npz
from robot_rl.extras.importers.dataset import ForeignDataset
from robot_rl.extras.importers.hdf5 import open_hdf5
from robot_rl.extras.importers.mapped import MappedEpisodes
from robot_rl.extras.importers.mapping import propose
from robot_rl.extras.importers.zarr_files import is_zarr, open_zarr
from robot_rl.extras.lerobot import layout
from robot_rl.plugins import format_of, resolve
from robot_rl.replay.catalogue import is_store
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.protocol import Annotations, Opened
from robot_rl.wire.endpoint import wait_for_endpoint

_SERVER_SECONDS = 2.0
_ROOM_SECONDS = 60.0
_FIRST_ACTOR = 1 << 31  # of imports; actors count from 0


def import_dataset(path: str, out: str, *, map: str | None) -> None:
    """Write the episodes of a dataset to a new episode dataset, or to a store with a server.

    Foreign demonstrations need a `map`; without it, a proposal is written next to `out`.
    """
    place = Path(path)
    if not place.exists():
        raise NotADataset(
            "there is nothing to import",
            got=f"no folder {place}",
            hint="name a dataset that `robot-rl export` or another program wrote",
        )
    store = store_at(Path(out))
    live = is_store(store) or store != Path(out)
    source: EpisodeSource
    if is_ours(place):
        source = DatasetEpisodes(place, Selection())
    elif (found := format_of(place)) is not None:
        source = resolve(found[1].open)(place)
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
        transfer(source, out, "imported")


def _import_foreign(place: Path, out: str, map: str | None) -> None:
    if map is None:
        file = Path(f"{Path(out)}".removesuffix(".zarr") + ".map.yaml")
        propose(place, Path(out), file, open_foreign(place))
        print(f"fill in {file}, then: {in_shell('robot-rl', 'import', place, out, f'map={file}')}")
        return
    source = MappedEpisodes(open_foreign(place), Path(map))
    transfer(source, out, "imported")
    print("\n".join(f"    {line}" for line in source.report))


def open_foreign(path: Path) -> ForeignDataset:
    """Open a folder of LeRobot, Minari, zarr, `.npz` or MCAP, or a file.

    Raises:
        MissingExtra: The package that reads the format is not installed.
        OutsideDataset: It names a file outside its folder.
        DatasetError: It has another format, or cannot be read.
    """
    path = path.absolute()  # for full file names in messages
    if (path / layout.INFO_PATH).is_file():
        layout.require_packages()
        from robot_rl.extras.importers.lerobot_frames import open_lerobot  # late: optional packages

        return open_lerobot(path)
    minari = path / "data" / "main_data.hdf5"
    if minari.is_file():
        return open_hdf5(inside(path, minari))
    if path.is_file() and path.suffix.lower() in (".hdf5", ".h5"):
        return open_hdf5(path)
    if is_zarr(path):
        return open_zarr(path)
    if path.suffix == ".npz" or any(path.glob("*.npz")):
        return open_npz(path)
    if path.suffix == ".mcap" or any(path.glob("*.mcap")):
        from robot_rl.extras.importers.mcap import open_mcap

        return open_mcap(path)
    raise NotADataset(
        f"{path} is no dataset that can be imported",
        expected="an episode or LeRobot dataset, .hdf5 (robomimic, Minari, D4RL), zarr of"
        " diffusion_policy, .npz or .mcap",
        hint="give the folder that `robot-rl export` or LeRobot wrote, or the file; unpack a .zip",
    )


def _import_into(source: EpisodeSource, store: Path) -> None:
    wait_for_endpoint(store, _SERVER_SECONDS)
    with (
        stoppable(len(source), f"sending to the server of {store}") as (on_episode, _),
        ReplayClient(store) as client,
    ):
        done = import_episodes(source, client, on_episode)
    before = done["episodes"] - done["new_episodes"]
    annotated = f", {count:,} annotations" if (count := done["new_annotations"]) else ""
    there = f"; {before} episodes were already stored, at least in part" if before else ""
    print(
        f"imported {done['new_episodes']} episodes ({done['new_rows']:,} rows{annotated}) into"
        f" {store}{there}"
    )


def import_episodes(
    source: EpisodeSource,
    client: ReplayClient,
    on_episode: Callable[[Episode], None] = lambda _: None,
) -> Counter[str]:
    """Send all episodes of a source, and their annotations, to a client's server.

    A source has its own session in the store, identified by its first episode, its columns and its
    length: an interrupted import resumes where it stopped, without duplicates. `on_episode` is
    called after each episode. Returns counts of ``episodes``, ``new_episodes``, ``new_rows`` and
    ``new_annotations``.

    Raises:
        SchemaMismatch: The store has other columns; names the field.
        SpoolError: There is no room; sent episodes stay, and the import can be repeated.
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
