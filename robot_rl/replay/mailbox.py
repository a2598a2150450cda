"""The mailbox of weights: the latest ones under each name, in a store.

STORE/weights/NAME-VERSION.safetensors     the tensors
STORE/weights/NAME.json                    version, metadata and the name of that file
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from robot_rl.processes.files import replace_bytes
from robot_rl.replay import StoreError, WeightsRefused
from robot_rl.replay.records import WeightsRecord
from robot_rl.replay.row_file import write_error

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def write_weights(store: Path, record: WeightsRecord, *, flush: bool) -> None:
    """Keep the latest weights under a name; the same ones again are accepted.

    Args:
        store: Folder of the store. Only its one writer calls this.
        record: The weights.
        flush: Whether to wait until they are on the disk.

    Raises:
        WeightsRefused: The stored version is as new or newer, or the name cannot be one.
        StoreFull: They do not fit; the stored ones stay.
        StoreError: They cannot be written; the stored ones stay.
    """
    name, version, folder = record.name, record.version, store / "weights"
    if not _NAME.fullmatch(name):
        raise WeightsRefused(
            "weights cannot have this name",
            got=name,
            expected="letters, digits, dot, dash and underscore",
        )
    stored = read_weights(store, name, tensors=False)
    if stored is not None and stored.version >= version:
        if stored.version == version and read_weights(store, name) == record:
            return
        raise WeightsRefused(
            f"weights {name!r} are not newer than the stored ones",
            got=version,
            expected=f"> {stored.version}",
        )
    tensors = folder / f"{name}-{version}.safetensors"
    about = {"version": version, "metadata": dict(record.metadata), "tensors": tensors.name}
    try:
        folder.mkdir(exist_ok=True)
        replace_bytes(tensors, record.tensors, flush=flush)
        replace_bytes(folder / f"{name}.json", json.dumps(about).encode(), flush=flush)
    except OSError as error:
        tensors.unlink(missing_ok=True)
        raise write_error(error, store) from error
    if stored is not None:
        (folder / f"{name}-{stored.version}.safetensors").unlink(missing_ok=True)


def read_weights(store: Path, name: str, *, tensors: bool = True) -> WeightsRecord | None:
    """Return the latest weights under a name, None without any.

    Args:
        store: Folder of the store.
        name: Whose weights.
        tensors: Whether to read them too, or only what is said of them.

    Raises:
        StoreError: They are damaged.
    """
    file = store / "weights" / f"{name}.json"
    if not file.exists():
        return None
    try:
        about = json.loads(file.read_bytes())
        data = file.with_name(about["tensors"]).read_bytes() if tensors else b""
        return WeightsRecord(name, int(about["version"]), data, about["metadata"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise StoreError(f"the stored weights {name!r} cannot be read", got=error) from error


def weights_versions(store: Path) -> dict[str, int]:
    """Return the version of the latest weights by name."""
    files = (store / "weights").glob("*.json")
    records = (read_weights(store, file.stem, tensors=False) for file in files)
    return {record.name: record.version for record in records if record is not None}
