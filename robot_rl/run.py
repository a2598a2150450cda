"""The run directory: the data, checkpoints, curves and report of one training run.

    runs/<task>/<YYYYmmdd-HHMMSS>/     `runs/latest` points to the latest run

The constants below name its files and folders. It also contains
`stages.jsonl` (completed stages of the recipe, and their duration), `episodes.jsonl`,
`learner.jsonl`, `evaluations.jsonl`, `corrections.jsonl`, `curation.jsonl` (rows of each
demonstration that are not cloned, and why), `gate.jsonl` (decisions of a gate, and why),
`policies.jsonl` (the deployed policy, and why: see `robot_rl.evaluation.ledger`),
`evaluate.jsonl` and `compare.jsonl` (results of those commands and of `certify`), `report.html`,
and `recorder/` (MCAP of all topics).

Files are replaced atomically: written to a temporary file, flushed to disk, then renamed. For
folders see `robot_rl.run.RunDirectory.atomic_folder`. Torch is loaded only when a policy is.
"""

from __future__ import annotations

import errno
import itertools
import json
import mmap
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from robot_rl.errors import RobotRLError, in_shell
from robot_rl.processes.files import (
    check_links,
    check_manifest,
    locked,
    newest_folder,
    point,
    replace_text,
    switched_folder,
    why_not_written,
)
from robot_rl.processes.waiting import wait_until

LATEST = "latest"
# Zarr groups of episodes.
DEMONSTRATIONS = "demonstrations.zarr"
# Random actions: of a run without demonstrations, or to train an image encoder.
EXPLORATION = "exploration.zarr"
GATHERED = "gathered.zarr"  # by policies that a recipe such as rl100 improves
EXAMPLES = "reward.zarr"  # for a success classifier
VISION = "checkpoints/vision"  # image encoder, if there are cameras
UNTRAINED = "checkpoints/untrained"  # start of learning without demonstrations
CLONED = "checkpoints/bc"
OFFLINE = "checkpoints/offline"  # learned from recorded episodes only
ACCEPTED = "checkpoints/accepted"  # the last policy that a gate accepted; initially the clone
CANDIDATE = (
    "checkpoints/candidate"  # the policy that rounds improve; round_1/ is the one judged then
)
LAST = "checkpoints/last"  # the learner's full state
STUDENT = "checkpoints/student"  # from `robot-rl distil`: student of the deployed policy
REWARD = "checkpoints/reward"  # a success classifier
CONFIG_FILE = "config.yaml"  # the resolved configuration
CELL_FILE = "cell.yaml"  # copy of the run's cell
STATE_FILE = "state.json"  # of a checkpoint
SUMMARY = "summary.json"
_CHECKSUM = "crc32"
SCENES = "scenes"  # images of each scene that a person resets
# Outcome of each attempt of `robot-rl run`; faults that stopped the robot.
ATTEMPTS, FAULTS = "attempts", "faults"
DEPLOYED, CLONED_POLICY, ACCEPTED_POLICY, LEARNED_POLICY, STUDENT_POLICY = POLICIES = (
    "deployed",
    "cloned",
    "accepted",
    "learned",
    "student",
)
# Policies with a fixed checkpoint name.
CHECKPOINTS = {CLONED_POLICY: CLONED, ACCEPTED_POLICY: ACCEPTED}


class RunError(RobotRLError):
    """A run directory that is missing, invalid or not writable."""


class RunDirectory:
    """The paths and files of one existing run; see `create` and `open`.

    Raises:
        RunError: A link in the directory leads out of it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        check_links(self.path, RunError)
        self.demonstrations = self.path / DEMONSTRATIONS
        self.failures = self.path / "failures.zarr"  # of a person's attempts, if stored
        self.corrections = self.path / "corrections.zarr"  # by an operator, before online learning
        self.exploration = self.path / EXPLORATION
        self.gathered = self.path / GATHERED
        self.reward_examples = self.path / EXAMPLES
        self.store = self.path / "store"  # the folder of the replay store

    @classmethod
    def create(cls, task: str, runs_directory: str | Path = "runs") -> RunDirectory:
        """Create `<runs_directory>/<task>/<YYYYmmdd-HHMMSS>` and point `latest` to it.

        Characters that are special in a shell or a file system, as in `module:id`, become `-`.
        Further runs in the same second get the suffixes `-2`, `-3`, ...
        """
        runs, task = Path(runs_directory).absolute(), re.sub(r"[^\w.-]+", "-", task)
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        problem, hint = f"the run directory below {runs} cannot be made", "runs_directory=PATH"
        with _reported(problem, runs, f"choose another place: {hint}"):
            (runs / task).mkdir(parents=True, exist_ok=True)
            for number in itertools.count(1):
                path = runs / task / (stamp if number == 1 else f"{stamp}-{number}")
                with suppress(FileExistsError):
                    path.mkdir()
                    break
            point(runs / LATEST, path.relative_to(runs))
        return cls(path)

    @classmethod
    def open(
        cls, path: str | Path, runs_directory: str | Path = "runs", *, with_policy: bool = False
    ) -> RunDirectory:
        """Open an existing run; `RunError` if there is none with this name.

        Args:
            path: A run directory, absolute or relative to the working directory or to
                `runs_directory`; or `latest`.
            runs_directory: Folder of all runs.
            with_policy: Whether `latest` prefers the latest run that has a policy.
        """
        runs = Path(runs_directory)
        candidates = [runs / LATEST] if str(path) == LATEST else [Path(path), runs / path]
        found = next((candidate for candidate in candidates if candidate.is_dir()), None)
        if found is None:
            for place in candidates:
                if (run := _run_around(place)) is not None:
                    policies = run.glob("checkpoints/[!.]*/policy/policy.json")
                    there = ", ".join(sorted(file.parents[1].name for file in policies))
                    raise RunError(
                        f"the run {run} has no {place.relative_to(run)}",
                        expected=f"checkpoints/ and one of {there}" if there else "the run itself",
                    )
            recent = ", ".join(map(str, _newest_first(runs)[:5]))
            raise RunError(
                f"there is no run {str(path)!r}",
                got="searched " + ", ".join(dict.fromkeys(str(c.absolute()) for c in candidates)),
                expected=recent or f"a run below {runs.absolute()}",
                hint="name one of them, or start one: robot-rl train. A setting is key=value",
            )
        if not (found / CONFIG_FILE).is_file():
            raise RunError(
                f"{found} is not a run directory",
                got="no config.yaml in it",
                expected="a folder that `robot-rl train` or `robot-rl collect` made",
                hint="it is a checkpoint: name its run" if policy_folder(found) else None,
            )
        if with_policy and str(path) == LATEST and not cls(found).has_policy():
            others = (other for other in _newest_first(runs) if cls(other).has_policy())
            found = next(others, found)
        return cls(found)

    @classmethod
    def around(
        cls, path: str | Path, runs_directory: str | Path = "runs", *, with_policy: bool = False
    ) -> RunDirectory:
        """Open the run that contains a checkpoint; any other path as `open` does."""
        if policy_folder(path) is None:
            return cls.open(path, runs_directory, with_policy=with_policy)
        if (found := _run_around(Path(path).absolute())) is None:
            raise RunError(
                f"the checkpoint {path} lies in no run",
                hint="name one first that does: its configuration is that of robot and task",
            )
        return cls(found)

    def has_policy(self) -> bool:
        """Whether the run has cloned or learned a policy."""
        return self.has_folder(CLONED) or self.has_folder(LAST)

    def is_empty(self) -> bool:
        """Whether nothing was recorded or learned: no episode, no step, no checkpoint."""
        files = (path for path in self.path.rglob("*") if path.is_file() and path.stat().st_size)
        nothing = (CONFIG_FILE, CELL_FILE, "stages.jsonl", "times.jsonl", "zarr.json")
        # Faults do not count: they prevented any recording.
        beside = (self.path / "logs", self.path / "recorder")
        return all(
            f.name in (*nothing, f"{FAULTS}.jsonl") or any(b in f.parents for b in beside)
            for f in files
        )

    def spool(self, actor: int) -> Path:
        """File that buffers an actor's steps until they are in the store."""
        return self.path / "spool" / f"actor-{actor}.rows"

    @staticmethod
    def snapshot_name(environment_steps: int) -> str:
        """Return the folder name of the policy at an evaluation, for `atomic_folder`."""
        return f"checkpoints/step_{environment_steps:07d}"

    @contextmanager
    def claim(self, role: str, wait_seconds: float = 30.0) -> Iterator[int]:
        """Ensure that no other process has the same role in this run while the context lasts.

        The claim is a lock; the system drops it with the last process that holds its descriptor.
        Yields the descriptor, which children may inherit. Waits for a process that is about to
        exit; `RunError` if it does not exit.
        """
        path = self.path / f".{role}.lock"
        with _reported(f"{path} cannot be written", path):
            file = path.open("ab")
        with file:
            if not wait_until(lambda: locked(file.fileno()), wait_seconds, every_s=0.1):
                raise RunError(
                    f"another {role} is at work in {self.path}",
                    hint="wait for it to end, or stop it with Ctrl-C",
                )
            yield file.fileno()

    def claimed(self) -> list[str]:
        """Return the roles of the running processes."""
        roles = []
        for lock in sorted(self.path.glob(".*.lock")):
            with lock.open("rb") as file:
                if not locked(file.fileno()):
                    roles.append(lock.name.removesuffix(".lock")[1:])
        return roles

    def append_jsonl(self, name: str, record: Mapping[str, Any]) -> None:
        """Append one line to `<name>.jsonl`, after removing a killed writer's unfinished line.

        Each file has one writer, and each line takes one system call. `RunError` on a full disk.
        """
        line = json.dumps(record).encode() + b"\n"
        path = self.path / f"{name}.jsonl"
        with _reported(f"{path} cannot be written", path), path.open("ab+", buffering=0) as file:
            _remove_unfinished_line(file.fileno())
            written = file.write(line)
            if written != len(line):  # a full disk writes part of a line
                file.truncate(file.tell() - (written or 0))
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def read_jsonl(self, name: str) -> list[dict[str, Any]]:
        """Return the records of `<name>.jsonl`, if any: see `read_json_lines`."""
        return read_json_lines(self.path / f"{name}.jsonl")

    def save_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one object to the file `name`, atomically replacing an older one."""
        path = self.path / name
        with _reported(f"{path} cannot be written", path):
            replace_text(path, json.dumps(content, indent=2) + "\n")

    def save_summary(self, content: Mapping[str, Any]) -> None:
        """Write the summary of the finished run, with its checksum."""
        self.save_json(SUMMARY, {**content, _CHECKSUM: _checksum(content)})

    def read_summary(self) -> dict[str, Any]:
        """Return the summary; empty before the run's end; `RunError` if it is damaged."""
        path = self.path / SUMMARY
        try:
            content = json.loads(path.read_bytes()) if path.exists() else {}
            checksum = content.pop(_CHECKSUM, None)
        except (ValueError, AttributeError) as error:
            problem, got = f"{path} is damaged", str(error)
        else:
            if checksum in (None, _checksum(content)):
                return dict(content)
            problem, got = f"{path} has changed since it was written", "another checksum"
        again = in_shell("robot-rl", "train", f"resume={self.path}")
        hint = f"restore it from a copy, or write it again: {again}"
        raise RunError(problem, got=got, hint=hint)

    @contextmanager
    def atomic_folder(self, name: str) -> Iterator[Path]:
        """Write a folder of the run atomically: see `switched_folder`."""
        link = self.path / name
        problem = f"{link} cannot be written; the one before is kept"
        with _reported(problem, link), switched_folder(link) as partial:
            yield partial

    def complete_folder(self, name: str) -> Path:
        """Return the folder that `atomic_folder` last wrote, after checking its files.

        The path names one generation and stays valid while the next is written. `CheckpointError`
        if a file is missing, truncated or changed.
        """
        return check_manifest(newest_folder(self.path / name))

    def has_folder(self, name: str) -> bool:
        """Return whether `atomic_folder` has written this folder."""
        return newest_folder(self.path / name).exists()


def policy_folder(path: str | Path) -> Path | None:
    """Return the policy folder of a checkpoint; None if the path is not a checkpoint.

    `RunError` if its description is damaged.
    """
    places = (Path(path), Path(path) / "policy")
    folder = next((place for place in places if (place / "policy.json").is_file()), None)
    if folder is not None:
        file = folder / "policy.json"
        try:
            json.loads(file.read_bytes())
        except ValueError as error:  # JSON and UTF-8 errors alike
            hint = f"copy {path} again, or export it again"
            raise RunError(f"{file} is damaged (not JSON)", got=error, hint=hint) from error
    return folder


def learned_steps(run: RunDirectory) -> int:
    """Return the environment steps behind a run's last checkpoint; 0 without one."""
    return steps_of(run.complete_folder(LAST)) if run.has_folder(LAST) else 0


def resolved_settings(run: RunDirectory) -> dict[str, Any]:
    """Return the settings that the learner resolved; empty before its first save.

    `discount`: γ per step. `value_range`: lowest and highest return; None if unlimited.
    `imitation_updates`: number after which imitation ends; 0 for never. `symmetric_views`: views
    per step; 1 is the step itself. Also settings of plug-in batch maps, such as `hindsight_share`.
    """
    if not run.has_folder(LAST):
        return {}
    state = json.loads((run.complete_folder(LAST) / STATE_FILE).read_text(encoding="utf-8"))
    return dict(state["taken"])


def steps_of(folder: Path) -> int:
    """Return the steps behind a checkpoint; a snapshot has no state file, but names them."""
    if (state := folder / STATE_FILE).is_file():
        return int(json.loads(state.read_text(encoding="utf-8"))["environment_steps"])
    named = re.search(r"step_(\d+)", str(folder))
    return int(named[1]) if named else 0


@contextmanager
def _reported(problem: str, place: Path, hint: str | None = None) -> Iterator[None]:
    """Turn an `OSError` into a `RunError` with the file and the hint."""
    try:
        yield
    except OSError as error:
        why, got, way_out, passes = why_not_written(error, place)
        if passes:
            hint = f"{way_out}, and give the command again, with this run"
        raise RunError(f"{problem}: {why}", got=got, hint=hint or way_out) from error


def _newest_first(runs: Path) -> list[Path]:
    found = runs.glob(f"*/*/{CONFIG_FILE}")
    return [p.parent for p in sorted(found, key=lambda p: p.stat().st_mtime, reverse=True)]


def _run_around(path: Path) -> Path | None:
    """Return the run that a path is or lies in; the path itself need not exist."""
    return next((f for f in (path, *path.parents) if (f / CONFIG_FILE).is_file()), None)


def _remove_unfinished_line(descriptor: int) -> None:
    """Truncate a file to the end of its last complete line."""
    if size := os.fstat(descriptor).st_size:
        with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as content:
            end = content.rfind(b"\n") + 1
        if end != size:
            os.ftruncate(descriptor, end)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file; empty if it is missing; `RunError` for a bad line.

    Skips an unfinished last line, as a killed writer leaves it.
    """
    records = []
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise RunError(f"{path}, line {number}, is not JSON", got=line[:80]) from error
        if not isinstance(record, dict):
            raise RunError(f"{path}, line {number}, is not a JSON object", got=line[:80])
        records.append(record)
    return records


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
