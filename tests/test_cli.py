"""What a person who types `robot-rl` sees, mistakes included."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from robot_rl import cli
from robot_rl.commands.runs import compare_run, compose_for_run, load_resolved, save_resolved
from robot_rl.commands.table import COMMANDS, commands
from robot_rl.config import ConfigError, compose, flatten, group_choices
from robot_rl.env.rollout import training_seed
from robot_rl.evaluation.evaluator import first_scene, name_of_domain
from robot_rl.plugins import Command
from robot_rl.processes.machine import describe_machine, package_version
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.run import RunDirectory


def test_help_names_all_commands(robot_rl_command):
    done = robot_rl_command("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in commands())


def page(capsys, command: str, *words: str) -> list[str]:
    assert cli.main([command, "--help", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 80
    return lines


@pytest.mark.parametrize("command", list(commands()))
def test_help_of_each_command_shows_what_matters(capsys, command):
    short = page(capsys, command)
    keys = [key[0] for line in short if (key := re.findall(r"^  ([\w.]+)=", line))]
    assert 7 * commands()[command].takes_overrides <= len(keys) <= 20
    for option in commands()[command].options:
        assert option.name in keys
        assert all(choice in "\n".join(short) for choice in option.words)


def test_help_shows_every_key_where_all_are_asked_for(capsys):
    whole = page(capsys, "train", "all")
    text = "".join(line.strip() for line in whole)
    for group, choices in group_choices().items():
        assert all(re.search(rf"\b{choice}\b", "\n".join(whole)) for choice in choices), group
    missing = [key for key in flatten(compose()) if f"{key}=" not in text]
    assert [key for key in missing if not key.startswith("choices.")] == []


def _entry(page: str, key: str) -> str:
    """A key, its value and what is said of it."""
    found = re.search(rf"^  {re.escape(key)}=.*\n(?: {{4,}}.*\n)*", page, re.MULTILINE)
    assert found, page
    return " ".join(found[0].split())


def test_help_says_what_the_comments_in_the_configuration_say(capsys):
    assert cli.main(["train", "task=reach", "--help"]) == 0
    page = capsys.readouterr().out
    assert _entry(page, "task").startswith(
        "task=reach Bring the TCP to a pose within 4 mm and 2 deg."
    )
    assert "Or: gym, gym_hil, peg_insert, peg_insert_hard" in _entry(page, "task")
    words = (
        "demonstrations=20 Successful demonstrations that `collect` records. 0: none; learning"
        " begins with random actions (algorithm=sac)."
    )
    assert _entry(page, "demonstrations") == words
    assert cli.main(["train", "--help", "all", "policy=diffusion_unet"]) == 0
    page = capsys.readouterr().out
    # Beside a key, above one, and in what several choices share.
    assert _entry(page, "task.expert.hover") == "task.expert.hover=0.008 m"
    assert "the most that the store" not in _entry(page, "replay.keys").lower()
    assert _entry(page, "policy.horizon") == "policy.horizon=8 actions of a chunk"


def test_the_first_words_come_before_torch_is_loaded(tmp_path: Path):
    command = [sys.executable, "-X", "importtime", "-m", "robot_rl.cli", "train", "device=cuda"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    before, words, after = done.stdout.partition(
        "train: task=peg_insert robot=sim policy=diffusion"
    )
    assert words
    assert not re.search(r"\| +torch", before)
    assert re.search(r"\| +torch", after)


def test_help_and_mistakes_load_no_torch(tmp_path: Path):
    for words in (["--help"], ["train", "--help"], ["train", "task=nothing"], ["bench", "nothing"]):
        code = f"import sys, robot_rl.cli as c; c.main({words}); print('torch' in sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.endswith("False\n"), words


@pytest.mark.parametrize(
    ("words", "valid", "nearest"),
    [
        (["trian"], "pretrain, train, distil, replay", "did you mean robot-rl train"),
        (["train", "task=peg_insret"], "peg_insert, peg_insert_hard", "mean task=peg_insert?"),
        (["train", "policy=difusion"], "diffusion", "did you mean policy=diffusion?"),
        (["train", "algorithm=rpld"], "residual, rlpd", "did you mean algorithm=rlpd?"),
        (["train", "algoritm.lr=1"], "algorithm, arms, artifacts", "did you mean algorithm?"),
        (["train", "evaluation.episods=5"], "episodes, every_steps", "mean evaluation.episodes?"),
        (["train", "evaluation={episods: 5}"], "episodes, every", "mean evaluation.episodes?"),
        (["train", "clock=steped"], "stepped, realtime", "did you mean clock=stepped?"),
        (["evaluate", "episode=5"], "episodes, seed", "did you mean episodes?"),
        (["run", "most_failure=5"], "episodes, most_failures", "did you mean most_failures?"),
        (["train", "seed"], "key=value", "next:"),
        (["train", "environment_steps=many"], "int, as in environment_steps=8000", "; next: "),
        (["train", "seed=1,2"], "one value", "once for each value"),
        (["train", "-m", "seed=0,1"], "a command makes one run", "give the command once for each"),
        (["train", "--multirun", "seed=0,1"], "makes one run", "give the command once for each"),
        (["train", "console.host=a=b"], "key=value", "\"console.host='a=b'\""),
        (["train", "--seed=1"], "key=value", "--help"),
        (["inspect"], "takes at least PATH", "robot-rl inspect runs/latest"),
        (["export", "runs/latest"], "takes STORE and OUT", "robot-rl export runs/latest OUT"),
        (["export", "a", "b", "fromat=zarr"], "format, source, success", "did you mean format?"),
        (["export", "a", "b", "format=lerobt"], "zarr, lerobot", "did you mean format=lerobot?"),
        (["import", "a", "b", "seed=1"], "one of map", "import has no option 'seed'"),
        (["evaluate", "run=nothing"], "there is no run 'nothing'", "robot-rl train"),
        (["evaluate", "nothing"], "there is no run 'nothing'", "robot-rl train"),
        (["console", "nothing"], "there is no run 'nothing'", "robot-rl train"),
        (["learner", "a", "b"], "takes at most one RUN; got: a b", ""),
        (["evaluate", "a", "run=b"], "the run is named twice; got: a and run=b", "one of them"),
        (["train", "task.value_range=[1.0,0.0]"], "low < high", "value_range=[0.0,1.0]"),
        (["train", "algorithm.settings.actor_every=0"], "'actor_every'", ">= 1"),
        (["train", "resume=nothing"], "there is no run 'nothing'", "robot-rl train"),
        (["inspect", "nothing"], "there is no run 'nothing'", "robot-rl train"),
        (["import", "nothing", "out"], "there is nothing to import", "no folder nothing"),
        (["frobnicate"], "one of collect, ", ""),
        (["train", "gate=nonsense"], "none, ", ""),
        (["train", "nosuchkey=1"], "nodes, ", ""),
        (["train", "algorithm=uni"], "best_of_n, ", ""),
        (["cell", "lab", "arm=ur", "gripper=claw"], "topics", ""),
    ],
)
def test_mistakes_are_answered_with_what_is_valid(
    capsys, tmp_path, monkeypatch, words, valid, nearest
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == cli.EXIT_ERROR
    output = capsys.readouterr()
    assert len(output.out.splitlines()) <= 1  # what is about to run
    assert len(output.err.splitlines()) == 1
    assert valid in output.err
    assert nearest in output.err
    assert nearest or "did you mean" not in output.err
    assert list(tmp_path.iterdir()) == []


def test_inspect_says_what_it_knows_of_where_there_is_nothing_of_ours(capsys, tmp_path):
    assert cli.main(["inspect", str(tmp_path)]) == cli.EXIT_ERROR
    said = capsys.readouterr().err
    assert "is nothing that robot_rl writes; got: a folder with nothing; expected: a run" in said


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed=one", "expected: int, as in seed=0"),
        ("seed=1.0", "next: write seed=1"),
        ("seed=true", "got: True (bool)"),
        ("seed=null", "got: null"),
        ("evaluation=5", "expected: mapping"),
        ("console.host=2024", "\"console.host='2024'\""),
        ("task.observation=state", "expected: list"),
        ("robot.home_joints=[1,2,x]", "robot.home_joints[2]"),
        ("seed.x=1", "seed is one value"),
        ("seed=${runs_directory}", "got: runs (str)"),
        ("seed=${nothing}", "refers to another that does not exist"),
    ],
)
def test_a_value_keeps_the_type_of_its_default(override, expected):
    with pytest.raises(ConfigError) as caught:
        compose([override])
    assert expected in str(caught.value)


def test_a_whole_number_serves_as_float():
    (key, value) = next((k, v) for k, v in flatten(compose()).items() if isinstance(v, float))
    changed = flatten(compose([f"{key}=2"]))[key]
    assert changed == 2.0
    assert isinstance(changed, float)
    assert value != changed


def test_configuration_is_resolved_and_closed():
    config = compose(["task=peg_insert_hard", "seed=3", "+note=hello"])
    assert config.task.name == config.choices.task == "peg_insert_hard"
    assert config.seed == 3
    assert config.note == "hello"
    assert not any("${" in str(value) for value in flatten(config).values())
    with pytest.raises(AttributeError):
        _ = config.sede


POSE = "[0.5, 0, 0.2, 1, 0, 0, 0]"
RESET = f"nodes.arm.parameters.reset.pose={POSE}"
# A leader moves joints, which not every robot's actions do.
ALSO = {
    "teleop=leader_topic": ["robot=ros_sim_joints"],
    "teleop=lerobot_leader": ["robot=ros_sim_joints", "teleop.device.settings.port=/dev/ttyACM1"],
}
# What no default can know.
GIVEN = {
    "reward=classifier": ["reward.source.path=runs/latest"],
    "reward=pose": [f"reward.source.pose={POSE}"],
    "robot=ros": ["robot.joint_names=[shoulder, elbow]"],
    "robot=franka": ["nodes.arm.parameters.driver.host=172.16.0.2", RESET],
    "robot=lerobot": [
        "nodes.arm.parameters.driver.settings.port=/dev/ttyACM0",
        "nodes.arm.parameters.reset.joints=[0.0]",
        "robot.joints.joint_high=[1.0]",
        "robot.joints.joint_low=[-1.0]",
    ],
    "robot=ur": ["nodes.arm.parameters.driver.host=192.168.1.10", RESET],
    "robot=topics": [
        "nodes.arm.parameters.driver.namespace=/controller",
        RESET,
        "robot.joint_names=[shoulder, elbow]",
    ],
    "robot=xarm": ["nodes.arm.parameters.driver.host=192.168.1.203", RESET],
}


# Choices of these groups say nothing of one another: several are tried in one composition.
INDEPENDENT = ("algorithm", "classifier", "domain", "gate", "observation", "operator", "policy")
INDEPENDENT += ("replay",)


@pytest.mark.parametrize("group", sorted({*group_choices()} - {*INDEPENDENT}))
def test_every_choice_composes(group):
    for choice in group_choices()[group]:
        word = f"{group}={choice}"
        assert compose([word, *ALSO.get(word, []), *GIVEN.get(word, [])]).choices[group] == choice


def test_every_choice_of_the_independent_groups_composes():
    groups = {group: group_choices()[group] for group in INDEPENDENT}
    for number in range(max(map(len, groups.values()))):
        chosen = {group: choices[number % len(choices)] for group, choices in groups.items()}
        config = compose([f"{group}={choice}" for group, choice in chosen.items()])
        assert {group: config.choices[group] for group in groups} == chosen


@pytest.mark.parametrize("word", list(GIVEN))
def test_what_has_no_default_is_asked_for(word):
    names = [given.partition("=")[0] for given in GIVEN[word]]
    with pytest.raises(ConfigError, match=f"must be given: {re.escape(', '.join(names))};"):
        compose([word])


def test_a_robot_without_a_reset_pose_is_refused_with_the_line_to_write():
    address = "nodes.arm.parameters.driver.host=192.168.1.10"
    written = re.escape(
        "with cell=PATH, or add nodes.arm.parameters.reset.pose=[x,y,z,qx,qy,qz,qw]"
    )
    with pytest.raises(ConfigError, match=f"{written}$"):
        compose(["robot=ur", address])


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    created = RunDirectory.create("reach", tmp_path / "runs")
    config = compose(["task=reach", "seed=3", f"runs_directory={tmp_path}/runs"])
    save_resolved(config, created.path)
    return created


def test_saved_configuration_reads_back_the_same(run: RunDirectory, tmp_path: Path):
    config = compose(["task=reach", "seed=3", f"runs_directory={tmp_path}/runs"])
    loaded = load_resolved(run.path)
    assert flatten(loaded) == flatten(config)
    kinds = {key: type(value) for key, value in flatten(config).items()}
    assert {key: type(value) for key, value in flatten(loaded).items()} == kinds
    compare_run(config, loaded)


def test_a_cut_configuration_is_reported(run: RunDirectory):
    (run.path / "config.yaml").write_text((run.path / "config.yaml").read_text()[:60] + "\n  [")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_resolved(run.path)
    (run.path / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(ConfigError, match="not the configuration of a run"):
        load_resolved(run.path)


def test_a_run_keeps_its_configuration(run: RunDirectory):
    kept = load_resolved(run.path)
    config = compose_for_run(["environment_steps=9000", "evaluation.episodes=7", "seed=3"], kept)
    assert (config.task.name, config.seed) == ("reach", 3)
    assert (config.environment_steps, config.evaluation.episodes) == (9000, 7)
    for override, got, expected in (
        ("seed=4", "seed=4", "seed=3"),
        ("task=peg_insert", "task=peg_insert", "task=reach"),
        ("task.environment.time_limit_steps=9", "=9", "=50"),
    ):
        with pytest.raises(ConfigError, match="made with another configuration") as caught:
            compose_for_run([override], kept)
        assert f"got: {override.partition('=')[0]}" in str(caught.value)
        assert got in str(caught.value)
        assert expected in str(caught.value)
    with pytest.raises(ConfigError, match="differs in task"):
        compare_run(compose(), kept)


def test_a_policy_may_be_measured_with_other_parameters_of_its_task(run: RunDirectory):
    kept = load_resolved(run.path)
    words = ["task.environment.tolerance=0.01", "robot=ros_sim"]
    with pytest.raises(ConfigError, match="made with another configuration"):
        compose_for_run(words, kept)
    for again in (kept, compose_for_run(words, kept, elsewhere=True)):
        config = compose_for_run(words, again, elsewhere=True)
        assert config.task.environment.tolerance == 0.01
        # What refers to it follows, also back to the default of one that was trained elsewhere.
        assert config.simulation.task.tolerance == 0.01
        assert config.nodes.arm.parameters.driver.task.tolerance == 0.01
        back = compose_for_run(["task.environment.tolerance=0.004"], config, elsewhere=True)
        assert back.nodes.arm.parameters.driver.task.tolerance == 0.004
    with pytest.raises(ConfigError, match=r"control_rate_hz=20\.0"):
        compose_for_run(["control_rate_hz=20"], kept, elsewhere=True)


def test_a_policy_may_be_measured_in_another_domain(run: RunDirectory):
    kept = load_resolved(run.path)
    words = ["domain=harsh", "domain.action_delay=[0.2,0.2]"]
    with pytest.raises(ConfigError, match="domain=harsh; expected: domain=ideal"):
        compose_for_run(words, kept)
    assert name_of_domain(compose_for_run([], kept, elsewhere=True)) == "ideal"
    harsh = compose_for_run(words, kept, elsewhere=True)
    assert name_of_domain(harsh) == "harsh action_delay=[0.2, 0.2]"
    one = compose_for_run(["domain.friction=[0.8,0.8]"], kept, elsewhere=True)
    assert name_of_domain(one) == "ideal friction=[0.8, 0.8]"
    elsewhere = compose_for_run(["robot=ros_sim"], kept, elsewhere=True)
    assert name_of_domain(elsewhere) is None


def test_stages_take_the_configuration_of_their_run(run: RunDirectory, tmp_path, monkeypatch):
    folder = tmp_path / "own_stage"
    folder.mkdir()
    (folder / "own_stage.py").write_text("seen = []\ndef run(config): seen.append(config)\n")
    monkeypatch.syspath_prepend(str(folder))
    command = Command("own_stage:run", "", "", keys="seed", default_run="latest")
    monkeypatch.setitem(COMMANDS, "own", command)
    for name in ([], [str(run.path)], [f"run={run.path}"], ["latest"], [f"reach/{run.path.name}"]):
        words = [*name, f"runs_directory={tmp_path}/runs", "evaluation.episodes=4"]
        assert cli.main(["own", *words]) == 0
        config = sys.modules["own_stage"].seen.pop()
        assert config.task.name == "reach"
        assert config.run == str(run.path)
        assert config.evaluation.episodes == 4


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("from robot_rl.errors import RobotRLError as E; raise E('no peg', got=1)", 2, "no peg"),
        ("from policies.errors import PolicyError as E; raise E('no net')", 2, "no net"),
        ("raise KeyboardInterrupt", 130, "stopped"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 130, "stopped"),
        ("raise OSError(28, 'No space left on device', 'x')", 2, "No space left on device"),
    ],
)
def test_exit_codes(tmp_path, monkeypatch, capsys, body, code, message):
    (tmp_path / "failing_stage.py").write_text(f"def run(config):\n    {body}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "failing_stage", raising=False)
    monkeypatch.setitem(
        COMMANDS, "failing", Command("failing_stage:run", "", "", keys="seed", run_key=None)
    )
    before = signal.getsignal(signal.SIGTERM)
    assert cli.main(["failing"]) == code
    assert message in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


def test_machine_is_described():
    machine = describe_machine()
    assert json.loads(json.dumps(machine)) == machine
    assert machine["cores"] >= 1
    assert machine["cpu"]
    # A report can be written from a checkout that is on the path alone.
    assert package_version("no-such-package") == "not installed"


class _Clock:
    now = 0.0

    def monotonic(self):
        return self.now


def test_progress_prints_plain_lines_where_there_is_no_terminal(capsys, monkeypatch):
    clock = _Clock()
    monkeypatch.setattr("robot_rl.processes.progress_display.time", clock)
    with WorkProgress(1000) as progress:
        progress.phase("online learning")
        for step in range(0, 401, 10):
            clock.now = step / 20.0
            progress.episode(step % 20 == 0)
            figures = {"update_to_data": 3.0, "replay_transitions": step + 2000}
            progress.update(step, {"updates_per_second": 60.0, **figures})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2  # after 10 s and 20 s; what the end would say was said
    for part in (
        "online learning",
        "environment steps 400 of 1,000",
        "success of the last 20 episodes 50 %",
        "updates/s 60.0",
        "update-to-data ratio 3.00",
        "replay transitions 2,400",
        "time left 0:00:30",
    ):
        assert part in lines[-1]


def test_while_it_warms_up_no_ratio_is_shown(capsys):
    with WorkProgress(1000) as progress:
        figures = {"update_to_data": None, "replay_transitions": 2100}
        progress.update(100, {"updates_per_second": 0.0, **figures})
    assert "update-to-data ratio none, warming up" in capsys.readouterr().out


def test_a_long_path_is_one_line_of_a_log():
    output = StringIO()
    path = f"/{'data/' * 40}demonstrations.zarr"
    with WorkProgress(20, "demonstrations", console=Console(file=output, width=80)) as progress:
        progress.note(f"written to {path}")
    assert f"written to {path}\n" in output.getvalue()


def test_progress_on_a_terminal_redraws_and_leaves_the_last_state():
    output = StringIO()
    console = Console(file=output, force_terminal=True, width=80)
    with WorkProgress(20, "demonstrations", console=console) as progress:
        progress.update(20)
        progress.note("97 of 100")
    text = output.getvalue()
    assert "20 of 20" in text
    assert text.index("97 of 100") < text.rindex("20 of 20")


def test_each_training_seed_is_judged_on_scenes_of_its_own():
    first = sorted(
        first_scene(compose([f"seed={seed}"]), final=final)
        for seed in (0, 1, 401)
        for final in (False, True)
    )
    assert min(after - before for before, after in itertools.pairwise(first)) > 1000
    assert first[-1] < training_seed(0, 0, 0)
    assert first_scene(compose(["seed=3", "evaluation.seed=7"]), final=False) == 7
