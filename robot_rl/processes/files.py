"""Files that are there whole or not at all, and on the disk."""

from __future__ import annotations

import os
from pathlib import Path


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file in UTF-8 and flush it to the disk; see `replace_bytes`."""
    replace_bytes(path, text.encode(), mode)


def replace_bytes(path: Path, data: bytes, mode: int = 0o666, *, flush: bool = True) -> None:
    """Write a file; who reads it, also after a kill, finds the old content or the new one.

    Args:
        path: The file. Only one process writes it at a time.
        data: All of its content.
        mode: Its permissions, less what the umask takes off.
        flush: Whether to wait until it is on the disk, so that it outlives a power cut.

    Raises:
        OSError: The disk is full or the folder cannot be written; the old file is kept.
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
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
