"""Policies on disk and on the wire: a JSON description, and weights as safetensors.

A folder holds `policy.json`, for people, and `policy.safetensors`, which has the same text in its
header, so its bytes are a complete policy. Reading either file cannot run code.

A policy on a large frozen base may omit the base's weights and refer to them by checksum. They
are then read once, from the base's folder.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor
from torch.overrides import TorchFunctionMode

from policies.behaviour import Behaviour
from policies.errors import CheckpointError, PolicyError, RobotRLError
from policies.policy import ChunkPolicy

DESCRIPTION_FILE = "policy.json"
TENSOR_FILE = "policy.safetensors"
_HEADER_KEY = "policy"
_CHECKSUM_KEY = "crc32"
_VISION = "vision/"
_BASE_KEY = "base_crc32"
_FOLDER_KEY = "base_folder"
# Limit on the tensor bytes that a file may allocate: a constant, plus a multiple of its size.
_LEAST_BOUND, _MOST_TIMES = 1 << 28, 8


@dataclass(frozen=True)
class StoredBase:
    """A base policy in its own folder, so that policies on top need not carry its weights."""

    policy: ChunkPolicy  # the base
    checksum: str  # checksum of its folder

    @classmethod
    def load(cls, folder: Path | str) -> StoredBase:
        """Read a folder that `save` wrote.

        Raises:
            CheckpointError: As `load`, or the folder has no chunk policy.
        """
        policy = load(folder, is_base=True).policy
        if not isinstance(policy, ChunkPolicy):
            raise CheckpointError(
                f"the policy in {folder} cannot be a base", got=policy.kind, expected="chunks"
            )
        return cls(policy, checksum(folder))


BaseSource = Callable[[], StoredBase]


def checksum(folder: Path | str) -> str:
    """Read the checksum of a policy folder from its header.

    Raises:
        CheckpointError: The file is missing, truncated or damaged.
    """
    path = Path(folder) / TENSOR_FILE
    with _reported(path), path.open("rb") as file:
        start = file.read(8)
        length, most = int.from_bytes(start, "little"), path.stat().st_size
        header = start + file.read(min(length, most))
    return _metadata(header, str(path))[_CHECKSUM_KEY]


def to_bytes(
    behaviour: Behaviour, base: StoredBase | None = None, facts: Mapping[str, str] | None = None
) -> bytes:
    """Serialise a behaviour with its weights and normalisers; `facts` go into the header.

    Omits the weights of `base` if it is the behaviour's base.
    """
    apart = base is not None and behaviour.policy.base is base.policy
    carried = _carried(behaviour, apart)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in carried.items()}
    text = json.dumps(behaviour.to_json())
    metadata = {_HEADER_KEY: text, _CHECKSUM_KEY: _checksum(text, tensors), **(facts or {})}
    if base is not None and apart:
        metadata[_BASE_KEY] = base.checksum
    return save_tensors(tensors, metadata)


def from_bytes(
    data: bytes, source: str = "the received policy", base: BaseSource | None = None
) -> Behaviour:
    """Read the output of `to_bytes`.

    Args:
        data: The bytes.
        source: Origin of the bytes, for messages.
        base: Loads the base; called only if the bytes refer to one.

    Raises:
        CheckpointError: Truncated or damaged bytes, an unknown kind, tensors that do not fit it, or
            a base other than the one that the bytes refer to.
    """
    with _judged(source):
        return _read(data, source, base)


def _read(data: bytes, source: str, base: BaseSource | None) -> Behaviour:
    metadata = _metadata(data, source)
    try:
        tensors = load_tensors(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{source} is truncated or damaged", got=f"{len(data)} bytes, {error}"
        ) from error
    checksum = _checksum(metadata[_HEADER_KEY], tensors)
    if checksum != metadata[_CHECKSUM_KEY]:
        raise CheckpointError(
            f"{source} is truncated or damaged",
            got=f"checksum {checksum}",
            expected=f"checksum {metadata[_CHECKSUM_KEY]}",
        )
    apart, referred = metadata.get(_BASE_KEY), None
    if apart is not None:
        if base is None:
            raise CheckpointError(
                f"{source} refers to a base that is stored apart", got="no base", expected=apart
            )
        stored = base()
        if stored.checksum != apart:
            raise CheckpointError(
                f"{source} was made for another base",
                got=f"a base with checksum {stored.checksum}",
                expected=f"checksum {apart}",
                hint="copy checkpoints/bc of the run that wrote it",
            )
        referred = stored.policy
    with _Bounded(_LEAST_BOUND + _MOST_TIMES * len(data)):
        behaviour = Behaviour.from_json(_parse(metadata[_HEADER_KEY], source), referred)
    _fill(behaviour, referred is not None, tensors, source)
    # Compute it here, in the thread that reads weights, not in the control loop.
    _ = behaviour.encoder_id
    return behaviour


def save(
    folder: Path | str,
    behaviour: Behaviour,
    base: StoredBase | None = None,
    base_folder: str | None = None,
) -> None:
    """Write a policy folder into a checkpoint that the caller publishes atomically.

    Omits the weights of `base` if it is the behaviour's base. They are in `base_folder`, a path
    relative to `folder`.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    place = {} if base is None or base_folder is None else {_FOLDER_KEY: base_folder}
    _write(target / TENSOR_FILE, to_bytes(behaviour, base, place))
    _write(target / DESCRIPTION_FILE, (json.dumps(behaviour.to_json(), indent=2) + "\n").encode())


def load(folder: Path | str, *, is_base: bool = False) -> Behaviour:
    """Read a policy folder; with `is_base` it must contain all of its weights.

    Raises:
        CheckpointError: A missing, truncated or damaged file, files from two checkpoints, an
            unknown kind, or tensors that do not fit it; names the file and the key. Also if its
            base is not in a neighbouring checkpoint, or has a base itself.
    """
    path = Path(folder)
    source, description = str(path / TENSOR_FILE), path / DESCRIPTION_FILE
    with _reported(path / TENSOR_FILE):
        data = (path / TENSOR_FILE).read_bytes()
    with _reported(description):
        content = _parse(description.read_bytes(), str(description))
    metadata = _metadata(data, source)
    if content != _parse(metadata[_HEADER_KEY], source):
        raise CheckpointError(
            f"{DESCRIPTION_FILE} and {TENSOR_FILE} in {path} do not describe one policy",
            hint="take both files from one checkpoint; policy.json is not meant to be edited",
        )
    place = metadata.get(_FOLDER_KEY)
    base = None
    if place is not None and not is_base:
        with _judged(source):
            checkpoints = (path.resolve() / "../..").resolve()
            beside = not Path(place).is_absolute() and (path / place).resolve()
        if not beside or not beside.is_relative_to(checkpoints):
            raise CheckpointError(
                f"{source} names a folder of its base that no copy would have",
                got=place[:200],
                expected="a checkpoint beside its own",
            )
        base = partial(StoredBase.load, path / place)
    return from_bytes(data, source, base)


def _carried(behaviour: Behaviour, without_base: bool) -> dict[str, Tensor]:
    """Return the policy's tensors, optionally without its base; prefix the image encoder's."""
    policy = behaviour.policy
    tensors: dict[str, Tensor] = dict(policy.state_dict())
    if without_base:
        prefix = next(name for name, module in policy.named_modules() if module is policy.base)
        inside = f"{prefix}." if prefix else ""
        tensors = {name: t for name, t in tensors.items() if not name.startswith(inside)}
    if behaviour.vision is not None:
        tensors |= {f"{_VISION}{n}": t for n, t in behaviour.vision.state_dict().items()}
    return tensors


def _fill(
    behaviour: Behaviour, without_base: bool, tensors: dict[str, Tensor], source: str
) -> None:
    own = _carried(behaviour, without_base)
    missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or unknown:
        raise CheckpointError(
            f"the tensors of {source} do not fit its description",
            got=(f"unknown {unknown}" if unknown else f"missing {missing}")[:300],
            expected=f"the {len(own)} tensors of its kind",
        )
    for name, tensor in tensors.items():
        mine = own[name]
        if tensor.shape != mine.shape or tensor.dtype != mine.dtype:
            raise CheckpointError(
                f"the tensor {name!r} of {source} has another shape or dtype",
                got=f"{tensor.dtype} {tuple(tensor.shape)}",
                expected=f"{mine.dtype} {tuple(mine.shape)}",
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"the tensor {name!r} of {source} is not finite", expected="finite numbers"
            )
    for name, tensor in tensors.items():
        own[name].copy_(tensor)


def _checksum(text: str, tensors: dict[str, Tensor]) -> str:
    """CRC-32 of description and weights; a flipped bit in a weight has no other symptom."""
    total = zlib.crc32(text.encode())
    for name in sorted(tensors):
        # As bytes: NumPy has no bfloat16.
        total = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes(), total)
    return f"{total:08x}"


def _metadata(data: bytes, source: str) -> dict[str, str]:
    """Read the metadata in the safetensors header: 8 bytes of length, then the header."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or len(data) < 8 + length:
        raise CheckpointError(
            f"{source} is truncated or damaged",
            got=f"{len(data)} bytes",
            expected=f"at least {8 + length} bytes",
        )
    metadata = _parse(data[8 : 8 + length], source).get("__metadata__")
    if not isinstance(metadata, dict) or not {_HEADER_KEY, _CHECKSUM_KEY} <= metadata.keys():
        raise CheckpointError(
            f"{source} is not a policy", got="no description in its header", expected=_HEADER_KEY
        )
    return {str(name): str(value) for name, value in metadata.items()}


def _parse(text: bytes | str, source: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # JSON and UTF-8 errors alike
        raise CheckpointError(f"{source} is truncated or damaged", got=repr(error)) from error
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{source} is not a policy", got=type(content).__name__, expected="dict"
        )
    return content


class _Bounded(TorchFunctionMode):
    """Rejects a description that needs far more tensor bytes than its file has."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most, self._made = most, 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a torch function and count the bytes of tensors that it makes from scratch."""
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and not any(isinstance(given, Tensor) for given in args):
            self._made += made.nbytes
            if self._made > self._most:
                raise CheckpointError(
                    "the policy's description asks for far more weights than there are",
                    got=f"{self._made:,} bytes and more",
                    expected=f"at most {self._most:,}",
                )
        return made


@contextmanager
def _judged(source: str) -> Iterator[None]:
    """Turn any error from a damaged or forged file into a `CheckpointError`."""
    try:
        yield
    except PolicyError as error:
        if isinstance(error, CheckpointError) and source in str(error):
            raise
        raise CheckpointError(f"{source} is no policy that can run: {error}") from error
    except RobotRLError:  # such as a class that is not in the registry, or a missing extra
        raise
    except Exception as error:
        got = " ".join(repr(error).split())[:300]
        raise CheckpointError(f"{source} is damaged, or was forged", got=got) from error


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `CheckpointError` that names the file."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"the policy file {path} cannot be read",
            got=error.strerror,
            expected=f"a folder with {DESCRIPTION_FILE} and {TENSOR_FILE}",
        ) from error


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
