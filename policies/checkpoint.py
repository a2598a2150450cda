"""Policies on disk and on the wire: JSON for what it is, safetensors for the weights.

A folder holds `policy.json`, for people, and `policy.safetensors`, which carries the same text
in its header, so that its bytes alone are a whole policy. Neither can run code when it is read.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from policies.behaviour import Behaviour
from policies.errors import PolicyError

DESCRIPTION_FILE = "policy.json"
TENSOR_FILE = "policy.safetensors"
_HEADER_KEY = "policy"
_CHECKSUM_KEY = "crc32"
_VISION = "vision/"


def to_bytes(behaviour: Behaviour) -> bytes:
    """Serialise a behaviour, weights and normalisers included."""
    tensors = {
        name: tensor.detach().cpu().contiguous() for name, tensor in _tensors(behaviour).items()
    }
    text = json.dumps(behaviour.to_json())
    return save_tensors(tensors, {_HEADER_KEY: text, _CHECKSUM_KEY: _checksum(text, tensors)})


def from_bytes(data: bytes, source: str = "the received policy") -> Behaviour:
    """Read what `to_bytes` gave.

    Args:
        data: The bytes.
        source: What they are, for messages.

    Raises:
        PolicyError: Truncated or damaged bytes, an unknown kind, or tensors that do not fit it.
    """
    return _assemble(data, source)


def save(folder: Path | str, behaviour: Behaviour) -> None:
    """Write a policy folder; an older one of that name is replaced once the new one is complete."""
    target = Path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.new")
    old = target.with_name(f".{target.name}.old")
    for leftover in (fresh, old):
        if leftover.exists():
            shutil.rmtree(leftover)
    fresh.mkdir()
    _write(fresh / TENSOR_FILE, to_bytes(behaviour))
    _write(fresh / DESCRIPTION_FILE, (json.dumps(behaviour.to_json(), indent=2) + "\n").encode())
    if target.exists():
        target.rename(old)
    fresh.rename(target)
    if old.exists():
        shutil.rmtree(old)


def load(folder: Path | str) -> Behaviour:
    """Read a policy folder.

    Raises:
        PolicyError: A missing, truncated or damaged file, files of two checkpoints, an unknown
            kind, or tensors that do not fit it; names the file and the key.
    """
    path = Path(folder)
    data = _read(path / TENSOR_FILE)
    text = _read(path / DESCRIPTION_FILE)
    content = _parse(text, str(path / DESCRIPTION_FILE))
    source = str(path / TENSOR_FILE)
    if content != _parse(_metadata(data, source)[_HEADER_KEY], source):
        raise PolicyError(
            f"{DESCRIPTION_FILE} and {TENSOR_FILE} in {path} do not describe one policy",
            hint="take both files from one checkpoint; policy.json is not meant to be edited",
        )
    return _assemble(data, source)


def _assemble(data: bytes, source: str) -> Behaviour:
    metadata = _metadata(data, source)
    try:
        tensors = load_tensors(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise PolicyError(
            f"{source} is truncated or damaged", got=f"{len(data)} bytes, {error}"
        ) from error
    checksum = _checksum(metadata[_HEADER_KEY], tensors)
    if checksum != metadata[_CHECKSUM_KEY]:
        raise PolicyError(
            f"{source} is truncated or damaged",
            got=f"checksum {checksum}",
            expected=f"checksum {metadata[_CHECKSUM_KEY]}",
        )
    behaviour = Behaviour.from_json(_parse(metadata[_HEADER_KEY], source))
    _fill(behaviour, tensors, source)
    # Worked out here, in the thread that reads weights, and not in the control loop.
    _ = behaviour.encoder_id
    return behaviour


def _tensors(behaviour: Behaviour) -> dict[str, Tensor]:
    """The policy's tensors under their names, the image encoder's under a prefix."""
    tensors: dict[str, Tensor] = dict(behaviour.policy.state_dict())
    if behaviour.vision is not None:
        tensors |= {f"{_VISION}{n}": t for n, t in behaviour.vision.state_dict().items()}
    return tensors


def _fill(behaviour: Behaviour, tensors: dict[str, Tensor], source: str) -> None:
    own = _tensors(behaviour)
    missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or unknown:
        raise PolicyError(
            f"the tensors of {source} do not fit its description",
            got=f"unknown {unknown}" if unknown else f"missing {missing}",
            expected=f"the {len(own)} tensors of its kind",
        )
    for name, tensor in tensors.items():
        mine = own[name]
        if tensor.shape != mine.shape or tensor.dtype != mine.dtype:
            raise PolicyError(
                f"the tensor {name!r} of {source} has another shape or dtype",
                got=f"{tensor.dtype} {tuple(tensor.shape)}",
                expected=f"{mine.dtype} {tuple(mine.shape)}",
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise PolicyError(
                f"the tensor {name!r} of {source} is not finite", expected="finite numbers"
            )
    for name, tensor in tensors.items():
        own[name].copy_(tensor)


def _checksum(text: str, tensors: dict[str, Tensor]) -> str:
    """Cover description and weights; a flipped bit in a weight has no other symptom."""
    total = zlib.crc32(text.encode())
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].numpy().tobytes(), total)
    return f"{total:08x}"


def _metadata(data: bytes, source: str) -> dict[str, str]:
    """Read the metadata in the safetensors header: 8 bytes of length, then the header."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or len(data) < 8 + length:
        raise PolicyError(
            f"{source} is truncated or damaged",
            got=f"{len(data)} bytes",
            expected=f"at least {8 + length} bytes",
        )
    metadata = _parse(data[8 : 8 + length], source).get("__metadata__")
    if not isinstance(metadata, dict) or not {_HEADER_KEY, _CHECKSUM_KEY} <= metadata.keys():
        raise PolicyError(
            f"{source} is not a policy", got="no description in its header", expected=_HEADER_KEY
        )
    return {str(name): str(value) for name, value in metadata.items()}


def _parse(text: bytes | str, source: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:  # JSON and UTF-8 errors alike
        raise PolicyError(f"{source} is truncated or damaged", got=repr(error)) from error
    if not isinstance(content, dict):
        raise PolicyError(f"{source} is not a policy", got=type(content).__name__, expected="dict")
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PolicyError(
            f"the policy file {path} cannot be read",
            got=error.strerror,
            expected=f"a folder with {DESCRIPTION_FILE} and {TENSOR_FILE}",
        ) from error


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
