"""Shared memory that killed participants leave goes; that of living ones is never touched."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

import listening  # a ROS domain of this test process's own
from std_msgs.msg import Float64

from robot_rl.ros.environment import SHARED_MEMORY, remove_abandoned_segments

TALKING = Path(__file__).with_name("talking.py")
OLD = "fastrtps_0123456789abcdef"


def talking(namespace, domain):
    """A process that publishes there."""
    environment = {**os.environ, "ROS_DOMAIN_ID": str(domain)}
    return subprocess.Popen([sys.executable, str(TALKING), namespace], env=environment)


def owned_by(pid):
    """Segments and lock files that a process owns, ports left out, as if they were old."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            lock = Path(os.readlink(entry))
        except OSError:
            continue
        name = lock.name
        if lock.parent == SHARED_MEMORY and name.endswith("_el") and "_port" not in name:
            os.utime(lock, (0, 0))
            found |= {lock, lock.with_name(name.removesuffix("_el"))}
    return found


def abandon(folder, name, *, age_s=60.0):
    """A segment as a killed participant leaves it."""
    segment, lock = folder / name, folder / f"{name}_el"
    segment.write_bytes(b"left")
    lock.touch()
    now = lock.stat().st_mtime
    os.utime(lock, (now - age_s, now - age_s))
    return segment, lock


def test_only_the_segments_of_a_killed_participant_go():
    listener = listening.Listener("/shared_memory")
    heard = listener.hear("number", Float64)
    # Nobody hears the one in another domain: Fast DDS itself removes what others have looked into.
    domain = int(os.environ["ROS_DOMAIN_ID"])
    living, killed = talking("/shared_memory", domain), talking("/alone", domain + 1)
    try:
        listener.until(lambda: heard)
        left = listener.until(lambda: owned_by(killed.pid))
        kept = owned_by(living.pid) | owned_by(os.getpid())
        assert len(kept) >= 4
        living.send_signal(signal.SIGSTOP)
        remove_abandoned_segments()
        living.send_signal(signal.SIGCONT)
        assert all(path.exists() for path in left | kept)

        killed.kill()
        killed.wait()
        remove_abandoned_segments()
        assert not any(path.exists() for path in left)
        assert all(path.exists() for path in kept)
        count = len(heard)
        listener.until(lambda: len(heard) > count + 5)
    finally:
        for process in (living, killed):
            process.kill()
            process.wait()
        listener.close()
        remove_abandoned_segments()


def test_what_may_have_an_owner_stays(tmp_path):
    locked = abandon(tmp_path, "fastrtps_aaaaaaaaaaaaaaaa")
    young = abandon(tmp_path, "fastrtps_bbbbbbbbbbbbbbbb", age_s=0.0)
    port = abandon(tmp_path, "fastrtps_port7410")
    foreign = abandon(tmp_path, "somebody_elses")
    without_lock = tmp_path / "fastrtps_cccccccccccccccc"
    without_lock.touch()
    link = tmp_path / "fastrtps_dddddddddddddddd_el"
    link.symlink_to(foreign[1])
    kept = [*locked, *young, *port, *foreign, without_lock]
    segment, lock = abandon(tmp_path, OLD)
    with locked[1].open("rb") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        assert remove_abandoned_segments(tmp_path) == [segment]
    assert all(path.exists() for path in kept)
    assert link.is_symlink()
    assert not segment.exists()
    assert not lock.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_lock_that_cannot_be_read_counts_as_held(tmp_path):
    segment, lock = abandon(tmp_path, OLD)
    lock.chmod(0)
    assert remove_abandoned_segments(tmp_path) == []
    assert segment.exists()


def test_a_machine_without_shared_memory_has_none_to_remove(tmp_path):
    assert remove_abandoned_segments(tmp_path / "shm") == []
