"""What a configuration may name, the user's own included, and what a wrong name gets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from policies import registry
from policies.places import PATH_VARIABLE
from policies.registry import RegistryError, make
from robot_rl.config import ConfigError, compose, group_choices
from robot_rl.env.task import Task
from robot_rl.processes.resources import find_resource


def test_make_builds_nested_targets_and_takes_further_arguments():
    task = {"_target_": "robot_rl.env.task.RobotTask", "name": "plug", "instruction": "plug in"}
    task |= {"time_limit_steps": 50, "action_names": ["x"]}
    config = {"_target_": "robot_rl.env.task.TrackedTask", "task": task, "reports_success": False}
    made = make(config, Task, start_pose=[0.4, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0], start_noise=0.0)
    assert (made.name, made.action_names) == ("plug", ("x",))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"minutes": 2}, "a key `_target_`"),
        ({"_target_": "Robot"}, "not named in full"),
        ({"_target_": "robot_rl.nothing.Arm"}, "no module named 'robot_rl.nothing'"),
        ({"_target_": "robot_rl.run.RunDirektory"}, "did you mean 'RunDirectory'?"),
        ({"_target_": "robot_rl.run.RunDirectory", "pth": 1}, "did you mean 'path'?"),
        ({"_target_": "robot_rl.run.RunDirectory"}, "missing a required argument: 'path'"),
        ({"_target_": "robot_rl.env.sim.task.SimTask"}, "give it a method build, goal_pose"),
        ({"_target_": "os.system", "command": "true"}, "'os.system' is not in the registry"),
        ({"_target_": "robot_rl.run.shutil"}, "no class 'shutil'"),
        ({"_target_": "robot_rl.run.datetime"}, "no class 'datetime'"),
        ({"_target_": "my_arm.Arm"}, "next: name the folder with my_arm.py: ROBOT_RL_PATH=FOLDER"),
    ],
)
def test_make_explains_what_does_not_fit(config, message):
    with pytest.raises(RegistryError) as caught:
        make(config, object)
    assert message in str(caught.value)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder of the user's own in `ROBOT_RL_PATH`."""
    folder = tmp_path / "my lab"
    (folder / "configs/task").mkdir(parents=True)
    monkeypatch.setenv(PATH_VARIABLE, str(folder))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return folder


def test_a_folder_of_the_users_own_adds_modules_choices_and_models(own):
    (own / "own_parts.py").write_text("class Part:\n    def __init__(self, size): self.size = size")
    (own / "configs/task/peg_deep.yaml").write_text(
        "defaults: [peg_insert, _self_]\nname: peg_deep\nenvironment: {success_depth: 0.025}\n"
    )
    (own / "hardware").mkdir()
    (own / "hardware/arm.xml").write_text("<mujoco/>")
    assert make({"_target_": "own_parts.Part", "size": 3}, object).size == 3
    assert "peg_deep" in group_choices()["task"]
    task = compose(["task=peg_deep"]).task
    assert (task.name, task.environment.success_depth, task.environment.friction) == (
        "peg_deep",
        0.025,
        0.3,
    )
    assert find_resource("hardware/arm.xml") == own / "hardware/arm.xml"
    assert find_resource("configs") != own / "configs"


def test_a_choice_that_there_is_already_is_refused(own):
    (own / "configs/task/reach.yaml").write_text("name: reach\n")
    with pytest.raises(ConfigError, match=r"two files describe task=reach; .*my lab.*rename yours"):
        group_choices()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("own_broken", "1 / 0", "'own_broken.Part' cannot be imported; got: ZeroDivisionError"),
        ("own_syntax", "def", "'own_syntax.Part' cannot be imported; got: SyntaxError"),
        ("own_lacking", "import nobody", "next: install the package that provides 'nobody'"),
        ("own_empty", "", "module 'own_empty' has no class 'Part'"),
        ("json", "class Part: ...", "the module 'json' of"),
    ],
)
def test_a_module_of_the_users_own_that_cannot_be_used_says_why(own, name, text, message):
    (own / f"{name}.py").write_text(text)
    with pytest.raises(RegistryError) as caught:
        make({"_target_": f"{name}.Part"}, object)
    assert message in str(caught.value)


def test_a_folder_that_is_not_there_is_named(own, monkeypatch):
    monkeypatch.setenv(PATH_VARIABLE, f"{own}:{own}/nothing")
    with pytest.raises(RegistryError, match=r"folder of your own is not there; got: .*nothing"):
        group_choices()


def test_a_folder_with_nothing_of_use_is_refused(own, tmp_path, monkeypatch):
    (tmp_path / "level/inside/configs").mkdir(parents=True)
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "level"))
    with pytest.raises(RegistryError, match=r"neither configs/ nor Python modules; got: .*level"):
        group_choices()


@pytest.mark.parametrize(
    "named", ["my lab", pytest.param("my lab/configs", marks=pytest.mark.slow)]
)
def test_the_command_line_takes_a_folder_and_hands_it_to_child_processes(own, tmp_path, named):
    (own / "configs/task/mine.yaml").write_text("defaults: [reach, _self_]\nname: mine\n")
    environment = {k: v for k, v in os.environ.items() if k != PATH_VARIABLE}
    code = (
        "import os, subprocess, sys; from robot_rl import cli;"
        f"print(cli.main(['train', '--config-dir', '{named}', 'task=mine', '--help']), flush=True);"
        "cli.main(['train', 'task=yours']);"
        "os.chdir('/');"
        "subprocess.run([sys.executable, '-c', 'from robot_rl.config import compose;"
        'print(compose(["task=mine"]).task.name)\'])'
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-2:] == ["0", "mine"], done.stderr
    assert f"got: task=yours (searched {own / 'configs'} too)" in done.stderr


def test_a_plugin_adds_its_package_and_its_configuration(tmp_path):
    """An installed package says so with an entry point; it is laid out like a folder."""
    package = tmp_path / "site/lab_plugin"
    (package / "configs/task").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text("class Part: ...")
    (package / "configs/task/plugged.yaml").write_text("defaults: [reach]\n")
    about = tmp_path / "site/lab_plugin-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-plugin\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[robot_rl.plugins]\nlab = lab_plugin\n")
    code = (
        "import json; from policies import registry; from robot_rl.config import group_choices;"
        "made = registry.make({'_target_': 'lab_plugin.parts.Part'}, object);"
        "print(json.dumps([type(made).__name__, 'plugged' in group_choices()['task']]))"
    )
    path = os.pathsep.join([str(tmp_path / "site"), str(Path(registry.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout or "null") == ["Part", True], done.stderr
