"""Whether this tree does, bit for bit, what another version does: `python tests/golden.py REF`.

Small runs of both versions through the command line, on this machine: checksums differ from one
kind of processor to another, so none are kept. Compared are the rows of the store, the weights that
were learned, what the arm's guard did in drawn sequences, and the topics of a simulated robot on
ROS 2. Names of tensors and of new fields may change, content may not.

    python tests/golden.py HEAD~1               all cases
    python tests/golden.py main residual guard  some of them
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
_SMALL = (
    "task=reach",
    "demonstrations=4",
    "cloning.updates=60",
    "environment_steps=300",
    "block_steps=50",
    "evaluation.periodic=false",
    "evaluation.compare=false",
    "evaluation.final_episodes=2",
    "evaluation.videos=0",
)
_ACTOR_CRITIC = (
    "algorithm.schedule.warmup_steps=100",
    "algorithm.schedule.critic_only_updates=20",
    "algorithm.schedule.updates_per_step=1",
)
RUNS = {
    "residual": ("algorithm=residual", *_ACTOR_CRITIC),
    "rlpd_pretrained": ("algorithm=rlpd_pretrained", *_ACTOR_CRITIC),
    "action_gradient": ("algorithm=action_gradient", "algorithm.schedule.warmup_steps=100"),
    "pixels": (
        "observation=pixels",
        "observation.vision_training.cloning.updates=20",
        "observation.vision_training.exploration_episodes=1",
        "demonstrations=2",
        "environment_steps=150",
        "algorithm.schedule.warmup_steps=50",
        *_ACTOR_CRITIC[1:],
    ),
    "vla": ("policy=vla_tiny", "task=reach_instructed", "cloning.updates=10", *_ACTOR_CRITIC),
}
# Says of the run in its folder what rows it has stored and what it has learned.
_READ_RUN = """
import hashlib
from pathlib import Path
import numpy as np
import robot_rl
from safetensors.numpy import load_file
fields = {}
for episode in robot_rl.read_episodes("latest"):
    for name in episode.rows.dtype.names:
        if not name.startswith("stamp"):
            data = np.ascontiguousarray(episode.rows[name])
            fields.setdefault(name, hashlib.sha256()).update(data)
for name, digest in sorted(fields.items()):
    print(name, digest.hexdigest())
files = sorted(Path("runs/latest/checkpoints/last").resolve().rglob("*.safetensors"))
tensors = [tensor for file in files for tensor in load_file(file).values()]
digests = sorted(hashlib.sha256(tensor.tobytes()).hexdigest() for tensor in tensors)
print("weights", len(digests), hashlib.sha256("".join(digests).encode()).hexdigest())
"""
_DRIVE_GUARD = """
import hashlib
import numpy as np
from scipy.spatial.transform import Rotation
from robot_rl.safety import (
    ArmGuard, ArmLimits, CommandRefused, JointArmLimits, MeasurementRefused, Mode
)

class Arm:
    tcp_velocity, joint_velocities = np.full(6, np.nan), np.zeros(7)

JOINTS = JointArmLimits(joint_low=(-2.0,) * 7, joint_high=(2.0,) * 7)
POSES = ArmLimits(
    workspace_low=(0.3, -0.2, 0.0), workspace_high=(0.65, 0.2, 0.45),
    joint_low=(-2.0,) * 7, joint_high=(2.0,) * 7,
)
counts = {}
for seed in range(400):
    rng, trace = np.random.default_rng(seed), hashlib.sha256()
    limits = JOINTS if seed % 3 == 0 else POSES
    guard, now, stamp = ArmGuard(limits), 100.0, 10**18
    place, arm = np.array([0.45, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0]), Arm()
    for step in range(60):
        now, stamp = now + (0.3 if rng.random() < 0.03 else 0.01), stamp + 10**7
        arm.stamp_ns, arm.tcp_pose = stamp, place.copy()
        arm.tcp_pose[:3] += rng.normal(size=3) * 1e-3
        arm.joint_positions = rng.normal(size=7) * 1e-3
        arm.tcp_wrench = rng.normal(size=6) * (30.0 if rng.random() < 0.05 else 1.0)
        if step > 3 and rng.random() < 0.02:
            arm.tcp_pose[rng.integers(7)] = rng.choice([np.nan, np.inf, 20.0])
        if rng.random() < 0.3:
            way = rng.normal(size=7) * 0.05
            turned = Rotation.from_rotvec(way[3:6]) * Rotation.from_quat(place[3:])
            target = way if limits is JOINTS else np.append(place[:3] + way[:3], turned.as_quat())
            try:
                guard.command(target, stamp, now, stamp)
            except CommandRefused as refusal:
                trace.update(refusal.reason.encode())
        if rng.random() < 0.02:
            guard.stop("drawn")
        if guard.mode is Mode.STOPPED and rng.random() < 0.2:
            guard.clear()
        try:
            target = guard.tick(now, arm)
        except MeasurementRefused:
            target = None
        trace.update(guard.mode.name.encode())
        if target is not None:
            trace.update(target.tobytes())
            place = target.copy() if limits is POSES else place
    print(f"sequence {seed}", trace.hexdigest())
    for name, count in guard.counts.items():
        counts[name] = counts.get(name, 0) + count
for name, count in sorted(counts.items()):
    print(name, count)
"""
_LIST_TOPICS = """
import re, subprocess, sys, time
from robot_rl.processes.waiting import wait_until
words = [sys.executable, "-m", "robot_rl.cli", "nodes", "robot=ros_sim"]
nodes = subprocess.Popen(words, stdout=subprocess.DEVNULL)
import rclpy
rclpy.init()
node = rclpy.create_node("listener")
def entries():
    for kind, found in (
        ("topic", node.get_topic_names_and_types()), ("service", node.get_service_names_and_types())
    ):
        for name, types in found:
            if "listener" not in name:
                yield re.sub(r"_[0-9]+/", "/", f"{kind}:{name} {','.join(types)}")  # process ids
before, since = None, time.monotonic()
while (now := sorted(entries())) != before or time.monotonic() - since < 15.0:
    if now != before:
        before, since = now, time.monotonic()
    time.sleep(0.2)
nodes.terminate()
nodes.wait()
print("\\n".join(now))
"""
PROGRAMS = {"guard": _DRIVE_GUARD, "topics": _LIST_TOPICS}


def result(tree: Path, case: str, folder: Path) -> dict[str, str]:
    """Run a case with the code of a tree; what came of it, by name."""
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "OMP_NUM_THREADS": "1",
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
    }

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{case} of {tree}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    if case in RUNS:
        run("-m", "robot_rl.cli", "train", *_SMALL, *RUNS[case])
    found = run("-c", PROGRAMS.get(case, _READ_RUN))
    return dict(line.rsplit(maxsplit=1) for line in found.splitlines() if line)


@contextmanager
def checkout(reference: str) -> Iterator[Path]:
    """Check another version out into a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", reference], cwd=HERE, stdout=subprocess.PIPE, check=True
        )
        subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
        yield Path(folder)


def main(reference: str, names: Sequence[str]) -> int:
    """Compare the cases; returns how many differ."""
    different = 0
    with checkout(reference) as other:
        for case in names or [*RUNS, *PROGRAMS]:
            with tempfile.TemporaryDirectory() as left, tempfile.TemporaryDirectory() as right:
                before = result(other, case, Path(left))
                after = result(HERE, case, Path(right))
            names_of = [name for name in {**before, **after} if before.get(name) != after.get(name)]
            changed = [name for name in names_of if name in before and name in after]
            missing = [name for name in names_of if name not in after]
            added = [name for name in names_of if name not in before]
            different += bool(names_of)
            words = [
                f"{what} {', '.join(each[:8])}"
                for what, each in (("changed", changed), ("gone", missing), ("new", added))
                if each
            ]
            print(f"{case}: {'; '.join(words) or f'equal in all {len(before)}'}", flush=True)
    return different


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
