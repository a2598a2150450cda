"""Atomic writes of files and folders, manifests to verify them, and locks."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from robot_rl.errors import CheckpointError as CheckpointError
from robot_rl.errors import RobotRLError, in_shell

MANIFEST = "manifest.json"
_HINT = "copy the run again, or use an older checkpoint of it (checkpoints/step_*)"


class Failure(NamedTuple):
    """Why a write failed, as text."""

    problem: str
    got: object
    hint: str
    passes: bool  # whether freeing space or resources fixes it


def why_not_written(error: OSError, place: Path) -> Failure:
    """Explain an operating-system error from writing to `place`."""
    match error.errno:
        case errno.ENOSPC:
            return _no_space(error, place)
        case errno.EDQUOT:
            hint = "free some space of this user, or have the quota raised"
            return Failure("this user's quota of the disk is used up", error, hint, passes=True)
        case errno.EFBIG:
            hint = "free some space, or raise the limit of a file's size: ulimit -f"
            return Failure("no space left in the file", error, hint, passes=True)
        case errno.EMFILE | errno.ENFILE:
            hint = "raise the limit (ulimit -n), or end some programs"
            return Failure("too many files are open", error, hint, passes=True)
        case errno.ENOMEM:
            hint = "end some programs"
            return Failure("there is no memory left", error, hint, passes=True)
        case errno.EROFS:
            hint = "mount it so that it can be written, or choose another place"
            return Failure("the file system is mounted read-only", error, hint, passes=False)
        case errno.EACCES | errno.EPERM:
            hint = "change who may write there, or choose another place"
            return Failure("this user may not write there", error, hint, passes=False)
        case errno.ENOENT | errno.ESTALE:
            hint = "see that its folder was not moved or removed"
            return Failure("its folder is not there", error, hint, passes=False)
    hint = "see that the folder can be written, and that its disk is sound"
    return Failure("the system could not write", error, hint, passes=False)


def _no_space(error: OSError, place: Path) -> Failure:
    there = next((folder for folder in (place, *place.parents) if folder.exists()), Path("/"))
    found = os.statvfs(there)
    free = found.f_bavail * found.f_frsize
    if found.f_files and not found.f_favail:
        got = f"0 of {found.f_files} inodes and {free} bytes free"
        hint = "delete files or folders that are not needed; how large they are does not matter"
        return Failure("the file system has no inodes left for a new file", got, hint, passes=True)
    return Failure("the disk is full", f"{free} bytes free", "free some space", passes=True)


def is_in_place(path: Path, descriptor: int) -> bool:
    """Whether `path` still refers to this open file."""
    with suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


def check_links(folder: Path, refused: type[RobotRLError]) -> None:
    """Raise `refused` if a symbolic link inside a folder points out of it.

    Writing or deleting through such a link would act elsewhere. The folder itself may be a link.
    """
    root = folder.resolve()

    def unlisted(error: OSError) -> None:
        if os.access(error.filename, os.X_OK):  # without access no link can be followed
            raise refused(f"{folder} has a folder that cannot be listed", got=error) from error

    for place, folders, names in os.walk(root, onerror=unlisted):
        for link in (os.path.join(place, name) for name in (*folders, *names)):
            if os.path.islink(link) and not Path(os.path.realpath(link)).is_relative_to(root):
                raise refused(
                    f"{folder} has a link to a place outside of its folder",
                    got=f"{os.path.relpath(link, root)} -> {os.path.realpath(link)}",
                    expected="links within the folder alone",
                    hint="if what it links to is yours, copy all into one folder:"
                    f" {in_shell('cp', '-rL', folder, 'COPY')}",
                )


def locked(descriptor: int) -> bool:
    """Try to lock an open file or folder without waiting; return whether that worked.

    The system releases the lock when the last process that holds it ends, however it ends.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a UTF-8 file and flush it to disk; see `replace_bytes`."""
    replace_bytes(path, text.encode(), mode)


def replace_bytes(path: Path, data: bytes, mode: int = 0o666, *, flush: bool = True) -> None:
    """Replace a file atomically: a reader gets the old or the new content, even after a kill.

    Only one process may write it at a time. With `flush` it also survives a power failure. On an
    `OSError`, such as a full disk, the old file stays. The umask applies to `mode`.
    """
    temporary = path.with_name(f".{path.name}.partial")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        if flush:
            os.fsync(descriptor)
    temporary.replace(path)
    if flush:
        flush_to_disk(path.parent)


def flush_to_disk(path: Path) -> None:
    """Flush a file's content, or a folder's list of names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def new_folder(path: Path, partial: Path) -> Iterator[Path]:
    """Yield the folder `partial` to fill, then rename it to `path`; delete it on an exception.

    Both must be on one file system, and `path` must be absent or an empty folder.
    """
    try:
        partial.mkdir()
        yield partial
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextmanager
def switched_folder(link: Path) -> Iterator[Path]:
    """Write a folder atomically as its latest generation.

    The caller fills the temporary folder that this yields. On exit, `manifest.json` records the
    sizes and SHA-256 sums of all files, everything is flushed to disk, and `link`, a symbolic link
    to the latest generation, switches to it atomically. The previous generation stays, since
    another process may be reading it; older ones are deleted. On an exception, such as a full disk,
    nothing changes.
    """
    number = max(_generations(link), default=0) + 1
    resolved_copy = link.is_dir() and not link.is_symlink()  # for example after scp -r of a run
    if resolved_copy:
        number += 1
    generation = link.with_name(f".{link.name}-{number:08d}")
    link.parent.mkdir(parents=True, exist_ok=True)
    for rest in link.parent.glob(f".{link.name}-*.partial"):
        shutil.rmtree(rest)
    with new_folder(generation, link.with_name(f"{generation.name}.partial")) as partial:
        yield partial
        _write_manifest(partial)
    if resolved_copy:
        link.rename(link.with_name(f".{link.name}-{number - 1:08d}"))
    point(link, Path(generation.name))
    for _, old in sorted(_generations(link).items())[:-2]:
        shutil.rmtree(old)


def newest_folder(link: Path) -> Path:
    """Return the latest generation of a folder; without one, the path of the link itself."""
    if not link.exists():
        generations = _generations(link)
        # The link is missing only after an interruption between the two renames of a resolved copy.
        link = generations[max(generations)] if generations else link
    return link.resolve()


def point(link: Path, target: Path) -> None:
    """Create or switch a symbolic link atomically."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}.link")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)
    flush_to_disk(link.parent)


def _generations(link: Path) -> dict[int, Path]:
    found = link.parent.glob(f".{link.name}-" + "[0-9]" * 8)
    return {int(path.name[-8:]): path for path in found}


def _write_manifest(folder: Path) -> None:
    """Record the size and SHA-256 of each file in a folder, and flush everything to disk."""
    files = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": _digest(path),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    manifest = json.dumps({"files": files}, indent=2) + "\n"
    (folder / MANIFEST).write_text(manifest, encoding="utf-8")
    for path in (*folder.rglob("*"), folder):
        flush_to_disk(path)


def check_manifest(folder: Path) -> Path:
    """Return the folder; `CheckpointError` names the first file that differs from the manifest."""
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
            missing = found is None
            raise CheckpointError(
                f"the checkpoint file {path} is {'missing' if missing else 'cut or changed'}",
                got=None if missing else f"{found} bytes",
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
