"""Manifests: how a folder of files proves that it is whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from robot_rl.errors import RobotRLError
from robot_rl.files import flush_to_disk

MANIFEST = "manifest.json"


class CheckpointError(RobotRLError):
    """A checkpoint that is absent, cut short or changed since it was written."""


def write_manifest(folder: Path) -> None:
    """Note size and SHA-256 of each file of a folder, and flush everything to the disk."""
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        files[path.relative_to(folder).as_posix()] = {
            "bytes": path.stat().st_size,
            "sha256": _digest(path),
        }
        flush_to_disk(path)
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=2) + "\n", encoding="utf-8")
    flush_to_disk(manifest)
    for path in [p for p in folder.rglob("*") if p.is_dir()]:
        flush_to_disk(path)
    flush_to_disk(folder)


def check_manifest(folder: Path) -> Path:
    """Check each file against the folder's manifest and return the folder.

    Raises:
        CheckpointError: Names the first file that is missing, has another size or other content.
    """
    manifest = folder / MANIFEST
    try:
        files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        expected = {str(name): (int(f["bytes"]), str(f["sha256"])) for name, f in files.items()}
    except FileNotFoundError as error:
        raise CheckpointError(
            f"there is no complete checkpoint {folder}",
            got="no manifest.json" if folder.is_dir() else "no such folder",
            hint="train first, or name another run",
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{manifest} cannot be read", got=repr(error), hint=_HINT) from error
    for name, (size, digest) in expected.items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            raise CheckpointError(
                f"the checkpoint file {path} is {'missing' if found is None else 'cut or changed'}",
                got=None if found is None else f"{found} bytes",
                expected=f"{size} bytes",
                hint=_HINT,
            )
        if _digest(path) != digest:
            raise CheckpointError(
                f"the checkpoint file {path} has changed since it was written",
                got="another SHA-256 sum than its manifest's",
                hint=_HINT,
            )
    return folder


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_HINT = "copy the run again, or use an older checkpoint of it (checkpoints/step_*)"
