"""The mailbox of weights: the latest ones under each name, in a store, and who waits for newer.

STORE/weights/NAME-VERSION.safetensors     the tensors
STORE/weights/NAME.json                    version, metadata and the name of that file
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

from robot_rl.processes.files import replace_bytes
from robot_rl.replay.errors import ReplayError, StoreError, WeightsRefused
from robot_rl.replay.messages import GetWeights, PutWeights, Weights
from robot_rl.replay.records import WeightsRecord
from robot_rl.replay.row_file import write_error
from robot_rl.wire.messages import Frame, encode, split

MAXIMUM_WAITING = 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TRIES = 8

Answer = tuple[bytes, list[Frame]]


@dataclass(frozen=True)
class _Waiting:
    client: bytes
    question: GetWeights
    deadline: float


class Mailbox:
    """Answers requests for weights, at once or when newer ones arrive; it never blocks.

    Args:
        store: Folder of the store that keeps the latest weights; its server has locked it.
        flush: Whether weights are on the disk when they count as stored.
    """

    def __init__(self, store: Path, *, flush: bool) -> None:
        self._store, self._flush = store, flush
        self._waiting: list[_Waiting] = []

    def put(self, weights: PutWeights, tensors: bytes) -> list[Answer]:
        """Store weights and return the answers to those who waited for them.

        Raises:
            WeightsRefused: The version is not newer than the stored one.
            StoreFull: They do not fit.
        """
        record = WeightsRecord(weights.name, weights.version, tensors, weights.metadata)
        write_weights(self._store, record, flush=self._flush)
        served = [w for w in self._waiting if _answers(record, w.question)]
        self._waiting = [w for w in self._waiting if w not in served]
        return [(w.client, _answer(w.question, record)) for w in served]

    def get(self, client: bytes, question: GetWeights, now: float) -> list[Frame] | None:
        """Return the answer to a request, or None where it waits for newer weights.

        Args:
            client: Who asks.
            question: Which weights.
            now: Steady clock, seconds.

        Raises:
            ReplayError: Too many clients wait.
        """
        if _answers(read_weights(self._store, question.name, tensors=False), question):
            return _answer(question, read_weights(self._store, question.name))
        if question.wait == 0:
            return _answer(question, None)
        if len(self._waiting) >= MAXIMUM_WAITING:
            raise ReplayError("too many clients wait for weights", got=len(self._waiting))
        self._waiting.append(_Waiting(client, question, now + question.wait))
        return None

    def expired(self, now: float) -> list[Answer]:
        """Return the empty answers to those who have waited long enough."""
        over = [w for w in self._waiting if w.deadline <= now]
        if over:
            self._waiting = [w for w in self._waiting if w.deadline > now]
        return [(w.client, _answer(w.question, None)) for w in over]

    def next_deadline(self) -> float:
        """Return when somebody has waited long enough, on the steady clock."""
        return min((w.deadline for w in self._waiting), default=math.inf)


def _answers(record: WeightsRecord | None, question: GetWeights) -> bool:
    newer_than = -1 if question.newer_than is None else question.newer_than
    return record is not None and record.name == question.name and record.version > newer_than


def _answer(question: GetWeights, record: WeightsRecord | None) -> list[Frame]:
    if record is None:
        return encode(Weights(request=question.request))
    metadata = dict(record.metadata)
    answer = Weights(request=question.request, version=record.version, metadata=metadata)
    return encode(answer, split(record.tensors))


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
    folder = store / "weights"
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
    files = (store / "weights").glob("*.json")
    records = (read_weights(store, file.stem, tensors=False) for file in files)
    return {record.name: record.version for record in records if record is not None}
