"""How often `robot-rl explain` names what is wrong with a run: 20 faults, and healthy runs."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from omegaconf import DictConfig

from policies.places import PATH_VARIABLE
from robot_rl import cli
from robot_rl.errors import RobotRLError

# Loaded once, for all processes that are forked from this one.
for _name in (
    "robot_rl.actor",
    "robot_rl.learner",
    "robot_rl.replay.server",
    "robot_rl.commands.train",
):
    importlib.import_module(_name)
_FORK = multiprocessing.get_context("fork")
# A run that is long enough for everything to be seen, and no longer.
_SHORT = (
    "demonstrations=15",
    "cloning.updates=300",
    "policy.denoiser.hidden=[64,64]",
    "algorithm.settings.actor_hidden=[32,32]",
    "algorithm.settings.critic_hidden=[32,32]",
    "algorithm.schedule.warmup_steps=100",
    "algorithm.schedule.critic_only_updates=50",
    "algorithm.schedule.updates_per_step=1",
    "algorithm.schedule.batch_size=32",
    "environment_steps=300",
    "evaluation.periodic=false",
    "evaluation.final_episodes=10",
    "evaluation.slots=10",
    "evaluation.videos=0",
)
_CAMERAS = ("observation=state_and_cameras",)
_PIXELS = (
    "observation=pixels",
    "demonstrations=6",
    "observation.vision_training.exploration_episodes=2",
    "observation.vision_training.cloning.updates=30",
)


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, from outside: in the robot, the task, the reward or the settings."""

    name: str
    cause: str  # what `explain` calls it
    words: tuple[str, ...] = ()  # of the training
    robot: Mapping[str, Any] = field(default_factory=dict)  # see `FaultyRobot`
    # Whether demonstrations are recorded with it too; else it has come between.
    recorded: bool = False
    recorded_words: tuple[str, ...] = ()  # of the recording alone
    task: str = "reach"


def faults(rng: np.random.Generator) -> list[Fault]:
    """The faults; how they look in detail is drawn."""

    def columns(change: str) -> list[list[float]]:
        matrix = np.eye(6)
        first, second = rng.choice(3, 2, replace=False)
        if change == "inverted":
            matrix[first, first] = -1.0
        elif change == "swapped":
            matrix[[first, second]] = matrix[[second, first]]
        else:
            matrix *= rng.uniform(0.05, 0.15)
        return matrix.tolist()

    def spoiled(name: str, how: str, amount: float = 0.0) -> dict[str, Any]:
        return {"spoiled": name, "how": how, "amount": amount}

    def either() -> bool:
        return bool(rng.random() < 0.5)

    camera = f"images/{rng.choice(['front', 'wrist'])}"
    room = float(rng.uniform(0.01, 0.03))
    noise = float(rng.uniform(0.02, 0.04))
    return [
        Fault("reward sign", "reward sign", ("reward.source._target_=faulty.Negated",), {}, True),
        Fault("dead camera", "camera dead", _CAMERAS, spoiled(camera, "constant"), either()),
        Fault("frozen camera", "camera frozen", _CAMERAS, spoiled(camera, "frozen"), either()),
        Fault("quaternion", "quaternion", (), spoiled("state/tcp_pose", "scalar_first"), either()),
        Fault(
            "clipped actions",
            "actions limited",
            (
                f"robot.limits.workspace_low=[0.42,-0.03,{0.2 - room:.3f}]",
                f"robot.limits.workspace_high=[0.48,0.03,{0.2 + room:.3f}]",
            ),
        ),
        Fault(
            "short lead",
            "action scale",
            (f"robot.limits.max_lead_translation={rng.uniform(0.0008, 0.002):.4f}",),
        ),
        Fault("tiny actions", "action scale", (), {"columns": columns("tiny")}),
        Fault("inverted column", "action sign", (), {"columns": columns("inverted")}),
        Fault("swapped columns", "action columns", (), {"columns": columns("swapped")}),
        Fault(
            "frozen encoder",
            "features",
            (*_PIXELS, "observation.vision.backbone.class=faulty.Blind"),
            recorded=True,
        ),
        Fault("delay", "delay", ("domain.action_delay=[{0},{0}]".format(rng.choice([0.3, 0.4])),)),
        Fault("noise", "noise", (), spoiled("state/relative_pose", "noisy", noise), either()),
        Fault(
            "constant observation",
            "observation constant",
            (),
            spoiled("state/relative_pose", "frozen"),
            either(),
        ),
        Fault("unit", "unit", (), spoiled("state/tcp_pose", "scaled", 1000.0), either()),
        Fault(
            "stuck gripper",
            "gripper",
            ("environment_steps=400",),
            {"columns": np.diag([1.0] * 6 + [0.0]).tolist()},
            task="pick_cube",
        ),
        Fault("no labels", "label missing", ("reward.source._target_=faulty.Silent",)),
        Fault(
            "small discount",
            "discount",
            (f"algorithm.schedule.discount={rng.choice([0.3, 0.5, 0.6])}",),
        ),
        Fault(
            "starved learner",
            "updates short",
            (
                "clock=realtime",
                "environment_steps=250",
                "algorithm.schedule.updates_per_step=100",
            ),
        ),
        Fault(
            "demonstrations of elsewhere",
            "demonstrations elsewhere",
            recorded=True,
            recorded_words=("task.environment._target_=faulty.ReachElsewhere",),
        ),
        Fault(
            "short time limit",
            "time limit",
            (f"task.environment.time_limit_steps={rng.integers(8, 12)}",),
        ),
        Fault(
            "value range",
            "value range",
            (f"algorithm.settings.value_range=[0,{rng.choice([0.05, 0.1])}]",),
        ),
        Fault("hasty labels", "label false", ("reward.source._target_=faulty.Hasty",)),
        Fault(
            "irregular period",
            "control period",
            ("clock=realtime", "environment_steps=200"),
            {"late_s": 0.3},
        ),
    ]


def healthy() -> list[Fault]:
    """Runs with which nothing is wrong."""
    tasks = ("reach", "reach", "reach", "pick_cube", "push_t")
    return [
        Fault(f"healthy {number}", "", _CAMERAS if number == 1 else (), task=task)
        for number, task in enumerate(tasks)
    ]


class Runs:
    """Trains short runs in a folder, with the command line's own processes.

    They are forked: each would import the same for seconds.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._recorded: dict[str, Path] = {}

    def trained(self, fault: Fault, number: int) -> Path:
        """Train with a fault; returns the run."""
        words = [f"task={fault.task}", *_SHORT, *fault.words]
        seed = self._seed + number
        if fault.recorded:
            dataset = self._record([*words, *fault.recorded_words], fault, seed)
        else:
            # The same for all of a task.
            words_seen = [w for w in fault.words if w.startswith("observation=")]
            base = [f"task={fault.task}", *_SHORT, *words_seen]
            if " ".join(base) not in self._recorded:
                healthy = Fault("base", "", task=fault.task)
                self._recorded[" ".join(base)] = self._record(base, healthy, self._seed + 900)
            dataset = self._recorded[" ".join(base)]
        runs = self._folder / f"run-{seed}"
        place = [f"dataset={dataset}", f"runs_directory={runs}", f"seed={seed}"]
        self._finish(self._begin(fault, "pretrain", *words, *place), fault)
        run = (runs / "latest").resolve()
        server = self._begin(fault, "replay", str(run))
        both = [self._begin(fault, name, str(run)) for name in ("learner", "actor")]
        try:
            # One that has failed would leave the other waiting for it.
            # Asked once whether they live: to wait for none of them would never end.
            while (left := [p for p in both if p.is_alive()]) and not any(p.exitcode for p in both):
                multiprocessing.connection.wait([p.sentinel for p in left])
            for process in sorted(both, key=lambda each: not each.exitcode):
                self._finish(process, fault)
        finally:
            for process in (*both, server):
                process.terminate()
                process.join()
        return run

    def explained(self, run: Path, fault: Fault) -> list[str]:
        """The names of the causes, the likeliest first."""
        self._finish(self._begin(fault, "explain", str(run), "json=true"), fault)
        last = self._log(fault).read_text().splitlines()[-1]
        return [cause["name"] for cause in json.loads(last)["causes"]]

    def _record(self, words: list[str], fault: Fault, seed: int) -> Path:
        runs = self._folder / f"recorded-{fault.task}-{len(self._recorded)}-{seed}"
        words = [w for w in words if not w.startswith("clock=")]
        place = [f"runs_directory={runs}", f"seed={seed}"]
        self._finish(self._begin(fault, "collect", *words, *place), fault)
        return (runs / "latest").resolve() / "demonstrations.zarr"

    def _begin(self, fault: Fault, *words: str) -> ForkProcess:
        parts = self._folder / fault.name.replace(" ", "-")
        file = parts / "configs/robot/faulty.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        robot = {"_target_": "faulty.FaultyRobot", "fault": dict(fault.robot)}
        file.write_text(yaml.safe_dump({"defaults": ["sim", "_self_"], **robot}))
        if fault.robot and words[0] in ("pretrain", "collect"):
            words = (*words, "robot=faulty")
        process = _FORK.Process(target=_robot_rl, args=(words, parts))
        process.start()
        return process

    def _finish(self, process: ForkProcess, fault: Fault) -> None:
        """Wait for its end, of one that has not failed."""
        process.join()
        if process.exitcode:
            said = self._log(fault).read_text()[-2000:]
            raise RobotRLError(f"the run of {fault.name!r} has failed", got=said)

    def _log(self, fault: Fault) -> Path:
        return self._folder / fault.name.replace(" ", "-") / "log.txt"


def _robot_rl(words: Sequence[str], parts: Path) -> None:
    os.environ[PATH_VARIABLE] = os.pathsep.join([str(parts), str(Path(__file__).parent)])
    log = os.open(parts / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.exit(cli.main(list(words)))


def run(config: DictConfig) -> dict[str, Any]:
    """Train a run for each fault, drawn from `seed`, and healthy ones, and have each explained.

    Returns:
        `named`: of how many faults the cause came first; `missed`: what was said of the others;
        `false_alarms`: what was said of runs without a fault; and the longest an answer took.
    """
    wrong = faults(np.random.default_rng(int(config.seed)))
    said: dict[str, list[str]] = {}
    longest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), 1000 * (1 + int(config.seed)))
        for number, fault in enumerate([*wrong, *healthy()]):
            run_ = runs.trained(fault, number)
            began = time.monotonic()
            said[fault.name] = names = runs.explained(run_, fault)
            longest = max(longest, time.monotonic() - began)
            sys.stderr.write(f"{fault.name}: {', '.join(names) or 'nothing'}\n")
    missed = {f.name: said[f.name] for f in wrong if said[f.name][:1] != [f.cause]}
    alarms = [said[fault.name] for fault in healthy()]
    return {
        "faults": len(wrong),
        "named": len(wrong) - len(missed),
        "missed": missed,
        "healthy": len(alarms),
        "false_alarms": [names for names in alarms if names],
        "longest_explanation_s": longest,
    }
