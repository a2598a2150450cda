"""What a file from elsewhere (a run, a cell, a checkpoint) names is never called.

Each name of ours, and some of Python's, stands in each place where a class is named.
"""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from untrained_policy import untrained

from drivers.arm.base import Arm
from drivers.camera.base import Camera
from drivers.gripper.base import Gripper
from drivers.teleop.base import TeleopDevice
from policies import checkpoint, places, registry
from policies.backbones import Backbone
from policies.denoisers import Denoiser
from policies.encoders import StateEncoder
from policies.policy import ChunkPolicy, Policy
from policies.processes.base import Process
from policies.registry import RegistryError
from policies.vision import ImageEncoder
from policies.vla_backbone import VLABackbone
from robot_rl import cli
from robot_rl.commands.runs import compose_for_run, load_resolved, save_resolved
from robot_rl.config import ConfigError, compose
from robot_rl.env.factory import make_env
from robot_rl.env.robot import Robot
from robot_rl.env.session import Reset
from robot_rl.env.sim.domain import Domain
from robot_rl.env.sim.task import Imperfections
from robot_rl.env.task import Expert, Task
from robot_rl.learning.algorithms.base import Algorithm
from robot_rl.learning.algorithms.behavior_cloning import CloningOptions
from robot_rl.learning.gate import Gate
from robot_rl.learning.recipe import Stage
from robot_rl.learning.symmetry import Symmetry
from robot_rl.rewards.classifier import SuccessClassifier
from robot_rl.rewards.source import RewardSource
from robot_rl.run import CLONED, RunDirectory

FOREIGN = (
    *("os.system", "os.remove", "posix.system", "builtins.eval", "builtins.exec", "shutil.rmtree"),
    *("subprocess.Popen", "importlib.import_module", "runpy.run_path", "pickle.loads"),
    *("timeit.timeit", "torch.load", "numpy.load", "omegaconf.OmegaConf.load", "hydra.utils.call"),
    *("robot_rl.processes.group.subprocess.Popen", "robot_rl.processes.machine.subprocess.run"),
    *("", ".", "..", "os", "robot_rl", "robot_rl..config.compose", "robot_rl.__class__"),
)
# Where a class is named: the family, a configuration that has it, and the key.
PLACES = {
    "domain": (Domain, (), "domain"),
    "robot": (Robot, (), "robot"),
    "robot on topics": (Robot, ("robot=ros_sim",), "robot"),
    "task": (Task, (), "task.environment"),
    "tracked task": (Task, (), "task.tracked"),
    "expert": (Expert, (), "task.expert"),
    "symmetry": (Symmetry, ("task=push_t",), "task.symmetry"),
    "imperfections": (Imperfections, ("operator=simulated",), "operator.imperfections"),
    "reset": (Reset, ("reset=backward_policy",), "reset.strategy"),
    "policy": (ChunkPolicy, (), "policy"),
    "vision": (ImageEncoder, ("observation=pixels",), "observation.vision"),
    "algorithm": (Algorithm, (), "algorithm"),
    "gate": (Gate, (), "gate"),
    "cloning": (CloningOptions, (), "cloning"),
    "stage": (Stage, (), "recipe.stages.clone"),
    "reward": (RewardSource, (), "reward.source"),
    "classifier": (SuccessClassifier, (), "classifier.model"),
    "teleoperation": (TeleopDevice, ("teleop=gamepad",), "teleop.device"),
    "arm": (Arm, ("robot=ros_sim",), "nodes.arm.parameters.driver"),
    "gripper": (Gripper, ("robot=ros_sim",), "nodes.gripper.parameters.driver"),
    "camera": (Camera, ("robot=ros_sim",), "nodes.cameras.parameters.driver"),
}
# Classes of which a checkpoint's description names one.
DESCRIBED = (Policy, StateEncoder, ImageEncoder, Backbone, Denoiser, Process, VLABackbone)


def names(checkout: Path) -> list[str]:
    """All functions and classes at the top of our modules."""
    found = list(FOREIGN)
    for package in places.OWN_PACKAGES:
        for path in sorted((checkout / package).rglob("*.py")):
            module = ".".join(path.relative_to(checkout).with_suffix("").parts)
            module = module.removesuffix(".__init__")
            if module == "robot_rl.commands.launching":
                continue  # loads ROS's own `launch`, which is not here
            kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found += [f"{module}.{each.name}" for each in tree.body if isinstance(each, kinds)]
    return found


class Calls:
    """What of ours the registry calls meanwhile, its own functions and those of errors apart."""

    def __init__(self, checkout: Path) -> None:
        self._registry = registry.__file__
        self._own = tuple(f"{checkout / package}/" for package in places.OWN_PACKAGES)
        apart = ("policies/errors.py", "policies/places.py")
        self._apart = (self._registry, *(str(checkout / name) for name in apart))
        self.seen: set[str] = set()

    def _note(self, frame, event, argument) -> None:
        if event == "call" and frame.f_back and frame.f_back.f_code.co_filename == self._registry:
            file = frame.f_code.co_filename
            if file.startswith(self._own) and file not in self._apart:
                self.seen.add(f"{file}: {frame.f_code.co_qualname}")

    def __enter__(self) -> Calls:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)


@pytest.fixture(scope="module")
def every(checkout):
    return names(checkout)


@pytest.fixture(scope="module")
def checkout():
    return Path(registry.__file__).parents[1]


@pytest.mark.parametrize("place", PLACES)
def test_only_the_family_of_a_place_can_be_made_there(place, every, checkout):
    family, words, key = PLACES[place]
    section = OmegaConf.to_container(OmegaConf.select(compose(["task=reach", *words]), key))
    refused = []
    for name in every:
        try:
            registry.check_arguments({**section, registry.TARGET: name}, family)
        except RegistryError:
            refused.append(name)
    taken = set(every).difference(refused)
    assert section[registry.TARGET] in {*taken, "policies.diffusion.create"}
    for name in taken:
        made = registry.find(name, family)
        assert isinstance(made, type) or made.makes_part
    # Each name is tried for good in one of the places; nothing of it is called.
    with Calls(checkout) as calls:
        for name in refused[list(PLACES).index(place) :: len(PLACES)]:
            with pytest.raises(RegistryError):
                registry.make({**section, registry.TARGET: name}, family)
    assert not calls.seen


@pytest.mark.parametrize("family", DESCRIBED)
def test_a_checkpoint_names_a_class_of_the_family_and_nothing_else(family, every):
    for name in every:
        try:
            assert issubclass(registry.find_class(name, family), family)
        except RegistryError:
            continue


NOTHING = {registry.TARGET: "robot_rl.processes.files.replace_text", "path": "called", "text": ""}
START = {registry.TARGET: "robot_rl.processes.group.start_process", "module": "timeit"}
START |= {"arguments": ["-n1", "-r1", "open('called', 'w')"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with a policy that has learned nothing."""
    config = compose(["task=reach", "evaluation.final_episodes=1", "evaluation.videos=0"])
    run = RunDirectory.create("reach", str(tmp_path_factory.mktemp("made")))
    save_resolved(config, run.path)
    with run.atomic_folder(CLONED) as folder:
        checkpoint.save(folder / "policy", untrained(make_env(config).schema))
    return run.path


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    """A copy of that run, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(places.PATH_VARIABLE, "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Path(shutil.copytree(made, "runs/reach/here")).resolve()


def changed(run, key, value):
    """Change a key in the file of a run, as somebody elsewhere may have."""
    config = OmegaConf.load(run / "config.yaml")
    OmegaConf.update(config, key, value, merge=False)
    (run / "config.yaml").write_text(OmegaConf.to_yaml(config))


def refusal(capsys, *words):
    """What a command says that ends with one error, and no traceback."""
    assert cli.main([str(word) for word in words]) == cli.EXIT_ERROR
    (line,) = [e for e in capsys.readouterr().err.splitlines() if e.startswith("robot-rl: ")]
    return line


@pytest.mark.parametrize(
    ("key", "payload"),
    [
        ("domain", NOTHING),
        ("domain", {**START, registry.TARGET: "os.system"}),
        ("robot", START),
        ("robot.limits", NOTHING),
        ("robot.cameras", START),
        ("task.environment", START),
    ],
)
def test_a_run_from_elsewhere_calls_nothing(run, capsys, key, payload):
    nested = {"first": [payload]} if key == "robot.cameras" else payload
    changed(run, key, nested)
    said = refusal(capsys, "evaluate", run)
    assert payload[registry.TARGET] in said
    assert not Path("called").exists()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("algorithm._target_", START[registry.TARGET], "is no Algorithm"),
        ("recipe.stages.clone", NOTHING, "is no Stage"),
        ("algorithm.settings", NOTHING, "is no ActorCriticSettings"),
        ("robot.model", "${oc.env:HOME}", "was changed: it refers to other values"),
        ("robot.model", "hardware/../../../etc/hostname", "only the folders that robot_rl ships"),
        (
            "nodes",
            {"arm": {"executable": "arm_node", "module": "timeit"}},
            "is no node of robot_rl",
        ),
    ],
)
def test_a_training_from_elsewhere_calls_nothing(run, capsys, key, value, said):
    changed(run, key, value)
    assert said in refusal(capsys, "train", f"resume={run}")
    assert not Path("called").exists()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("seed", "x", "seed has another type than its default"),
        ("seed", None, "seed has another type than its default"),
        ("evaluation.slots", "x", "evaluation.slots has another type"),
        ("evaluation.final_seed", [3], "evaluation.final_seed is out of range"),
        ("execute_steps", "x", "execute_steps has another type"),
        ("device", 3, "device has another type"),
        ("device", "evil", "unknown device 'evil'"),
        ("clock", "evil", "unknown clock 'evil'"),
        ("arms", ["left"], "arms has another type"),
        ("arms", {"left": {"robot": {"limits": []}}}, "arms.left: robot.limits has another type"),
        ("cell", 5, "cell is no path"),
        ("robot.model", ["a"], "robot.model is no path"),
        ("robot.limits", [], "robot.limits has another type"),
        ("robot.limits.workspace_low", ["a", "b", "c"], "workspace_low[0] has another type"),
        ("task.environment.time_limit_steps", "x", "time_limit_steps has another type"),
        ("task.expert", None, "task.expert has another type"),
        ("task.environment.instruction", ["a"], "task.environment.instruction has another type"),
        ("task.name", ["a"], "is not the configuration of a run"),
        ("choices", ["a"], "is not the configuration of a run"),
        ("task", "reach", "is not the configuration of a run"),
        ("choices", {"task": "reach"}, "it has no setting choices.algorithm"),
        ("observation.states", [1], "observation.states[0] has another type"),
        ("task.name", "\x1b[31mred", r"control characters; got: task.name: \x1b[31mred"),
        ("choices.task", "\x9b31mred", r"got: choices.task: \x9b31mred"),
    ],
)
def test_a_value_of_another_kind_is_named(run, key, value, said):
    changed(run, key, value)
    with pytest.raises(ConfigError) as refused:
        compose_for_run([], load_resolved(run))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", "x"), ("environment_steps", None), ("dataset", 3), ("task.name", "\x1b[31mred")],
)
def test_a_run_whose_choices_are_not_here_is_looked_at_as_carefully(run, capsys, key, value):
    changed(run, "choices.task", "of_another_lab")
    assert cli.main(["inspect", str(run)]) == 0
    changed(run, key, value)
    assert f"config.yaml was changed: {key}" in refusal(capsys, "inspect", run).replace(
        "a value has control characters; got: ", ""
    )


def test_what_files_of_a_run_say_moves_no_cursor(run, capsys):
    line = '{"candidate": "a", "decision": "\\u001b[31mred\\u009b", "reason": "r"}'
    (run / "gate.jsonl").write_text(line + "\n")
    assert cli.main(["inspect", str(run)]) == 0
    assert r"gate, a: \x1b[31mred\x9b, r" in capsys.readouterr().out


def test_a_run_imports_no_package_for_its_environment(run, capsys):
    robot = {registry.TARGET: "robot_rl.env.gym.GymRobot", "id": "antigravity:X-v0"}
    changed(run, "robot", {**robot, "arguments": {}, "action_scale": None})
    task = {registry.TARGET: "robot_rl.env.gym.GymTask", "name": "any", "instruction": ""}
    changed(run, "task.environment", {**task, "time_limit_steps": 3})
    said = refusal(capsys, "evaluate", run)
    assert "got: antigravity; next: if you trust that package, add robot.id=antigravity:X" in said
    assert "antigravity" not in sys.modules


def test_python_files_beside_a_run_are_not_its_code(run, tmp_path, capsys):
    other = tmp_path / "other lab"
    other.mkdir()
    for folder in (run, other):
        text = "open('called', 'w')\nfrom robot_rl.env.sim.domain import Domain\n"
        (folder / "own_domain.py").write_text(f"{text}class Mine(Domain): pass\n")
        (folder / "cell.yaml").write_text("choices: {robot: sim, task: reach}\n")
    changed(run, "domain", {registry.TARGET: "own_domain.Mine"})
    changed(run, "cell", str(other / "cell.yaml"))
    for word in ("evaluate", "collect"):
        said = refusal(capsys, word, run)
        assert "got: domain._target_: own_domain.Mine" in said
        assert "name the folder with own_domain.py: cell=FOLDER" in said
        assert f"it was made with 'cell={other}/cell.yaml'" in said
    assert not Path("called").exists()
    # Who names it brings it.
    assert cli.main(["evaluate", str(run), f"cell={other}"]) == 0
    assert Path("called").exists()
