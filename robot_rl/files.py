"""Files that are there whole or not at all, and on the disk."""

from __future__ import annotations

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write a file in UTF-8 and flush it to the disk; who reads sees the old file or the new one.

    Args:
        path: The file. Only one process writes it at a time.
        text: All of its content.

    Raises:
        OSError: The disk is full or the folder cannot be written; the old file is kept.
    """
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(text, encoding="utf-8")
    flush_to_disk(temporary)
    temporary.replace(path)
    flush_to_disk(path.parent)


def replace_link(link: Path, target: Path) -> None:
    """Make or switch a symbolic link in one step, and flush it to the disk.

    Raises:
        OSError: The folder cannot be written; the old link is kept.
    """
    temporary = link.with_name(f".{link.name}.{os.getpid()}.link")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)
    flush_to_disk(link.parent)


def flush_to_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
