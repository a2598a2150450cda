"""The latest weights under each name, in a store.

weights/NAME-VERSION.safetensors     the tensors
weights/NAME.json                    version, metadata and the name of that file
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from robot_rl.processes.files import replace_bytes
from robot_rl.replay.errors import StoreError, WeightsRefused
from robot_rl.replay.records import WeightsRecord

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TRIES = 8


def write_weights(store: Path, record: WeightsRecord, *, flush: bool) -> None:
    """Keep the latest weights under a name; the same ones again are accepted.

    Args:
        store: Folder of the store. Only its one writer calls this.
        record: The weights.
        flush: Whether to wait until they are on the disk.

    Raises:
        WeightsRefused: The stored version is as new or newer, or the name cannot be one.
        OSError: They cannot be written; the stored ones stay.
    """
    if not _NAME.fullmatch(record.name):
        raise WeightsRefused(
            "weights cannot have this name",
            got=record.name,
            expected="letters, digits, dot, dash and underscore",
        )
    stored = read_weights(store, record.name, tensors=False)
    if stored is not None and stored.version >= record.version:
        if stored.version == record.version and read_weights(store, record.name) == record:
            return
        raise WeightsRefused(
            f"weights {record.name!r} are not newer than the stored ones",
            got=record.version,
            expected=f"> {stored.version}",
        )
    folder = _folder(store)
    tensors = folder / _tensors_name(record)
    about = {
        "version": record.version,
        "metadata": dict(record.metadata),
        "tensors": tensors.name,
    }
    folder.mkdir(exist_ok=True)
    try:
        replace_bytes(tensors, record.tensors, flush=flush)
        replace_bytes(folder / f"{record.name}.json", json.dumps(about).encode(), flush=flush)
    except OSError:
        tensors.unlink(missing_ok=True)
        raise
    if stored is not None:
        (folder / _tensors_name(stored)).unlink(missing_ok=True)


def read_weights(store: Path, name: str, *, tensors: bool = True) -> WeightsRecord | None:
    """Return the latest weights under a name, None without any.

    Args:
        store: Folder of the store.
        name: Whose weights.
        tensors: Whether to read them too, or only what is said of them.

    Raises:
        StoreError: They are damaged.
    """
    folder = _folder(store)
    for _ in range(_TRIES):
        try:
            about = json.loads((folder / f"{name}.json").read_bytes())
            data = (folder / about["tensors"]).read_bytes() if tensors else b""
            return WeightsRecord(name, int(about["version"]), data, about["metadata"])
        except FileNotFoundError:
            if not (folder / f"{name}.json").exists():
                return None
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise StoreError(f"the stored weights {name!r} cannot be read", got=error) from error
    raise StoreError(f"the stored weights {name!r} lack their tensors", got=f"{folder}")


def weights_versions(store: Path) -> dict[str, int]:
    """Return the version of the latest weights by name."""
    records = (
        read_weights(store, file.stem, tensors=False) for file in _folder(store).glob("*.json")
    )
    return {record.name: record.version for record in records if record is not None}


def _folder(store: Path) -> Path:
    return store / "weights"


def _tensors_name(record: WeightsRecord) -> str:
    return f"{record.name}-{record.version}.safetensors"
