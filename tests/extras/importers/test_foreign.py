"""Demonstrations of others: a proposal, the answers of a person, and the rows that come of it."""

import json
import re
import sys
from pathlib import Path

import foreign_files as files
import gymnasium
import numpy as np
import pytest
from demonstrations import LENGTHS, run
from foreign_files import fill
from scipy.spatial.transform import Rotation

from robot_rl import cli
from robot_rl.commands.preparation import try_environment
from robot_rl.config import compose
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.schema import SchemaMismatch
from robot_rl.env.robot import ARM_ACTIONS
from robot_rl.errors import RobotRLError
from robot_rl.extras.importers.import_dataset import open_foreign
from robot_rl.extras.importers.mapped import MappedEpisodes, converted
from robot_rl.learning.demonstrations import check_demonstrations
from robot_rl.safety.rotations import continuous

WRITERS = {
    "lerobot": files.write_lerobot_21,
    "robomimic.hdf5": files.write_robomimic,
    "minari": files.write_minari,
    "d4rl.hdf5": files.write_d4rl,
    "all.npz": files.write_npz,
    "takes": files.write_npz_folder,
}
ACTION = ("action_convention", "action_low", "action_high")
BLANKS = {
    "lerobot": ("task", *ACTION, "terminated"),
    "robomimic.hdf5": ("task", *ACTION, "terminated", "success"),
    "minari": ("control_rate_hz",),
    "d4rl.hdf5": ("task", "control_rate_hz", *ACTION, "success"),
    "all.npz": ("task", "control_rate_hz", *ACTION, "terminated"),
    "takes": ("task", "control_rate_hz", *ACTION, "reward", "terminated"),
}
WITH_FINAL = ("robomimic.hdf5", "minari", "takes")


def propose(folder: Path, name: str) -> tuple[Path, Path]:
    """Write demonstrations, and have a mapping proposed; returns both."""
    if name.endswith("hdf5") or name == "minari":
        pytest.importorskip("h5py", reason="needs the extra hdf5")
    WRITERS[name](folder / name)
    assert run("import", folder / name, folder / "out.zarr") == 0
    assert not (folder / "out.zarr").exists()
    return folder / name, folder / "out.map.yaml"


def take_in(path: Path, mapping: Path, out: str = "out.zarr") -> int:
    """Import by a mapping that is filled in; returns the exit code."""
    return run("import", path, mapping.with_name(out), f"map={mapping}")


@pytest.mark.parametrize("name", WRITERS)
def test_a_proposal_asks_for_the_rest_and_the_answers_make_rows(tmp_path: Path, capsys, name):
    path, mapping = propose(tmp_path, name)
    said = capsys.readouterr().out
    assert said.startswith("fill in ")
    assert len(said.splitlines()) == 1
    asked = [
        line.partition(":")[0].strip()
        for line in mapping.read_text().splitlines()
        if line.partition(":")[2].split("#")[0].strip() == "???"
    ]
    assert tuple(asked) == BLANKS[name]
    answers = {"terminated": "dones"} if name == "robomimic.hdf5" else {}
    fill(mapping, **answers)
    assert take_in(path, mapping) == 0
    said = capsys.readouterr().out
    assert "imported 3 episodes" in said
    assert "2 successful" in said
    assert "actions, of -1 to 1: action_0 -" in said
    final = name in WITH_FINAL
    assert ("1 last steps left out: nobody recorded what followed" in said) is not final

    dataset = EpisodeDataset(tmp_path / "out.zarr")
    assert dataset.schema.control_rate_hz == files.RATE
    assert dataset.successes.tolist() == [True, False, True]
    (observed,) = (n for n in dataset.schema.observation_names if n.startswith("state/"))
    for number, episode in enumerate(files.recorded()):
        rows, count = dataset.episode(number), len(episode["action"])
        kept = count if final or number != 1 else count - 1
        np.testing.assert_array_equal(rows["action"][:kept], episode["action"][:kept] / 2.0)
        np.testing.assert_array_equal(rows["last_command"][1:], rows["action"][:-1])
        np.testing.assert_array_equal(rows[observed][:kept], episode["seen"][:kept])
        np.testing.assert_array_equal(rows["success"][:kept], episode["reached"][:kept])
        np.testing.assert_array_equal(rows["terminated"][:kept], episode["reached"][:kept])
        if final:
            np.testing.assert_array_equal(rows[observed], episode["seen"])
        assert rows["truncated"].tolist()[-2:] == [number == 1, False]
        assert rows["is_last"].tolist() == [False] * kept + [True]
    assert dataset.instructions[0] == ("reach the goal" if name == "lerobot" else "")


def test_a_lerobot_3_dataset_with_cameras_is_imported_as_if_lerobot_had_recorded_it(
    copy: Path, folder: Path, tmp_path: Path, capsys
):
    (copy / "meta/robot_rl.json").unlink()
    assert run("import", copy, tmp_path / "out.zarr") == 0
    proposed = tmp_path / "out.map.yaml"
    assert "\n#   observation.images.front  uint8 (64, 80, 3)\n" in proposed.read_text()
    text = proposed.read_text().replace("state/environment_state:", "state/object_poses:")
    proposed.write_text(text)
    mapping = fill(
        proposed,
        action_convention="joint",
        action_low="-1",
        action_high="1",
        success="next.success",
    )
    assert run("import", copy, tmp_path / "out.zarr", f"map={mapping}") == 0
    theirs = EpisodeDataset(tmp_path / "out.zarr")
    ours = EpisodeDataset(folder / "imported.zarr")
    for number in range(len(LENGTHS)):
        mine, other = ours.episode(number), theirs.episode(number)
        np.testing.assert_array_equal(mine["images/front"], other["images/front"])
        poses = continuous(mine["state/object_poses"])  # of the same signs as any import
        np.testing.assert_array_equal(poses, other["state/object_poses"])
        for name in ("action", "reward", "terminated", "success"):
            np.testing.assert_array_equal(mine[name], other[name])
    assert theirs.instructions[0] == ours.instructions[0]


@pytest.mark.parametrize(
    ("name", "answers", "parts"),
    [
        ("lerobot", {"control_rate_hz": "10"}, ["another rate", "got: 10;", "expected: 20.0"]),
        (
            "lerobot",
            {"action_low": "-0.1", "action_high": "0.1"},
            ["'action_", "of the steps", "convention"],
        ),
        ("lerobot", {"action_convention": "delta"}, ["'delta' has no 'pan'", "expected: x, y"]),
        (
            "lerobot",
            {"action_convention": "torque"},
            ["action_convention is not right", "got: torque"],
        ),
        (
            "lerobot",
            {"success": "missing"},
            ["success", "got: missing", "next.success", "or any COLUMN"],
        ),
        ("lerobot", {"reward": "???"}, ["fill in reward"]),
        ("lerobot", {"action_names": "[a]"}, ["one name for each", "got: 1", "expected: 2"]),
        ("lerobot", {"action_low": "[1, 2, 3]"}, ["action_low", "action_0, action_1"]),
        ("lerobot", {"action_high": "-2"}, ["action_high is not right", "got: [-2, -2]"]),
        ("lerobot", {"success": "terminated"}, ["none of the 3", "success"]),
        ("lerobot", {"episodes": "train"}, ["episodes", "got: train", "expected: one of all"]),
        ("lerobot", {"tsk": "a", "task": "a\ntsk: b"}, ["unknown key 'tsk'", "'task'"]),
        ("all.npz", {"action_names": "5"}, ["action_names is not right", "got: 5"]),
        ("all.npz", {"control_rate_hz": "fast"}, ["control_rate_hz is not right", "float"]),
        ("all.npz", {"control_rate_hz": "0"}, ["another rate", "got: 0", "above 0"]),
        ("all.npz", {"state/observation": "obs[5:9]"}, ["obs[5:9] names no number"]),
        ("takes", {"success": "terminated", "terminated": "never"}, ["none of the 3", "success"]),
    ],
)
def test_a_mapping_that_cannot_be_right_gets_one_sentence(
    tmp_path: Path, capsys, name, answers, parts
):
    path, mapping = propose(tmp_path, name)
    fill(mapping, **answers)
    capsys.readouterr()
    assert take_in(path, mapping) == cli.EXIT_ERROR
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    for part in parts:
        assert part in error
    assert not (tmp_path / "out.zarr").exists()
    with pytest.raises(RobotRLError):  # before anything is written
        MappedEpisodes(open_foreign(path), mapping)


@pytest.mark.parametrize("name", ["place", "state/a/../b", "images/place", "state/object_poses"])
def test_an_observation_needs_a_name_and_numbers_that_a_row_can_have(tmp_path: Path, capsys, name):
    path, mapping = propose(tmp_path, "takes")
    mapping.write_text(fill(mapping).read_text().replace("state/place:", f"{name}:"))
    assert take_in(path, mapping) == cli.EXIT_ERROR
    assert f"{name!r} cannot be an observation" in capsys.readouterr().err


def test_own_datasets_need_no_mapping(folder: Path, tmp_path: Path, capsys):
    words = ("import", folder / "lerobot", tmp_path / "out.zarr", "map=a.yaml")
    assert run(*words) == cli.EXIT_ERROR
    assert "leave it out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        ({"action": np.zeros((4, 2)), "obs": np.zeros((4, 2))}, ["no end in ['action', 'obs']"]),
        ({"action": np.array([{}])}, ["cannot be read", "Python objects"]),
        ({"action": np.zeros((4, 2)), "episode_ends": np.array([9])}, ["4 steps ends", "[9]"]),
        ({"action": np.zeros((4, 2)), "episode_ends": np.array([3])}, ["4 steps ends", "[3]"]),
        (
            {"action": np.zeros((4, 2)), "terminals": np.zeros(4), "timeouts": np.zeros(4)},
            ["where each episode of its 4 steps ends", "no end in terminals or timeouts"],
        ),
        (
            {"action": np.zeros((4, 2)), "done": np.ones(4)},
            ["no episode", "4 episodes of a single"],
        ),
    ],
)
def test_arrays_that_are_no_episodes_get_one_sentence(tmp_path: Path, capsys, columns, parts):
    np.savez(tmp_path / "all.npz", **columns)
    assert run("import", tmp_path / "all.npz", tmp_path / "out.zarr") == cli.EXIT_ERROR
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    for part in parts:
        assert part in error


def test_terminations_alone_do_not_say_where_an_episode_ends_that_was_cut_short(
    tmp_path: Path, capsys
):
    path, mapping = propose(tmp_path, "all.npz")
    columns = dict(np.load(path))
    columns["terminals"] = columns["success"]
    del columns["episode_ends"]
    np.savez(path, **columns)
    mapping.unlink()
    assert run("import", path, tmp_path / "out.zarr") == 0
    assert "\n# Which episodes: terminals (2).\n" in mapping.read_text()
    assert "\nepisodes: ???\n" in mapping.read_text()
    fill(mapping, episodes="terminals")
    assert take_in(path, mapping) == 0
    assert "imported 2 episodes (18 steps, 2 successful)" in capsys.readouterr().out


def test_terminals_that_stay_true_make_no_episodes_of_one_step(tmp_path: Path, capsys):
    steps, ends = np.zeros((12, 2), np.float32), np.zeros(12, np.bool_)
    ends[[3, 4, 5, 10, 11]] = True
    columns = {"observations": steps, "actions": steps, "rewards": steps[:, 0]}
    np.savez(tmp_path / "all.npz", terminals=ends, timeouts=ends & False, **columns)
    assert run("import", tmp_path / "all.npz", tmp_path / "out.zarr") == 0
    mapping = fill(tmp_path / "out.map.yaml", terminated="terminals")
    assert run("import", tmp_path / "all.npz", tmp_path / "out.zarr", f"map={mapping}") == 0
    said = capsys.readouterr().out
    assert "imported 2 episodes (9 steps, 2 successful)" in said
    assert "NumPy, without 3 episodes of a single step by terminals or timeouts" in said
    assert EpisodeDataset(tmp_path / "out.zarr").episode_ends.tolist() == [5, 11]


def test_a_filter_key_of_robomimic_chooses_episodes(tmp_path: Path, capsys):
    path, mapping = propose(tmp_path, "robomimic.hdf5")
    assert "\n# Which episodes: all (3), train (2), valid (1).\n" in mapping.read_text()
    assert "\nepisodes: all\n" in mapping.read_text()
    fill(mapping, terminated="dones", episodes="test")
    assert take_in(path, mapping) == cli.EXIT_ERROR
    assert "got: test; expected: one of all, train, valid" in capsys.readouterr().err
    fill(mapping, episodes="train")
    assert take_in(path, mapping) == 0
    assert "imported 2 episodes (14 steps, 2 successful)" in capsys.readouterr().out


def test_the_mapping_file_is_named_after_the_dataset_and_never_overwritten(tmp_path: Path, capsys):
    files.write_npz(tmp_path / "all.npz")
    assert run("import", tmp_path / "all.npz", tmp_path / "mine.v2") == 0
    assert (tmp_path / "mine.v2.map.yaml").is_file()
    for out, problem in (("mine.v2", "File exists"), ("none/mine.zarr", "No such file")):
        assert run("import", tmp_path / "all.npz", tmp_path / out) == cli.EXIT_ERROR
        assert f"cannot be written; got: {problem}" in capsys.readouterr().err


def test_values_that_are_not_finite_are_named_with_their_episode(tmp_path: Path, capsys):
    path, mapping = propose(tmp_path, "takes")
    take = dict(np.load(path / "take_9.npz"))
    take["obs/place"][2] = np.nan
    np.savez(path / "take_9.npz", **take)
    fill(mapping, success="all")
    assert take_in(path, mapping) == cli.EXIT_ERROR
    assert "episode 1" in capsys.readouterr().err
    assert not (tmp_path / "out.zarr").exists()


def test_frames_at_another_rate_than_the_file_says_are_refused(tmp_path: Path, capsys):
    path, mapping = propose(tmp_path, "lerobot")
    information = path / "meta/info.json"
    information.write_text(information.read_text().replace('"fps": 20', '"fps": 50'))
    fill(mapping, control_rate_hz="50")
    assert take_in(path, mapping) == cli.EXIT_ERROR
    assert "not at the rate that info.json says" in capsys.readouterr().err


def test_without_its_package_a_format_names_the_extra(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    (tmp_path / "a.hdf5").touch()
    assert run("import", tmp_path / "a.hdf5", tmp_path / "out.zarr") == cli.EXIT_ERROR
    assert "pip install -e '.[hdf5]'" in capsys.readouterr().err


def drive(path: Path, episodes: int) -> None:
    """Demonstrations of MountainCarContinuous: push the way that the car rolls."""
    env = gymnasium.make("MountainCarContinuous-v0")
    path.mkdir()
    for number in range(episodes):
        seen, actions, rewards, ended = [env.reset(seed=number)[0]], [], [], [False]
        noise = np.random.default_rng(number)
        while not ended[-1]:
            push = np.sign(seen[-1][1] + 1e-9) * noise.uniform(0.7, 1.0, 1)
            observation, reward, terminated, _, _ = env.step(push)
            seen.append(observation)
            actions.append(push)
            rewards.append(reward)
            ended.append(terminated)
        columns = {"obs": seen, "action": actions, "reward": rewards, "terminated": ended[1:]}
        np.savez(path / f"{number}.npz", **columns)


def import_car(folder: Path, episodes: int, **answers: str) -> Path:
    drive(folder / "takes", episodes)
    assert run("import", folder / "takes", folder / "car.zarr") == 0
    bounds = {"action_low": "-1", "action_high": "1", "control_rate_hz": "30"}
    told = {"task": "MountainCarContinuous-v0", "success": "terminated"}
    mapping = fill(folder / "car.map.yaml", **{**bounds, **told, **answers})
    assert run("import", folder / "takes", folder / "car.zarr", f"map={mapping}") == 0
    return folder / "car.zarr"


@pytest.mark.parametrize(
    ("answers", "parts"),
    [
        ({}, []),
        ({"action_high": "3"}, ["other bounds", "got: [[-1.0], [3.0]]", "expected: [[-1.0], [1"]),
        (
            {"action_convention": "joint", "action_names": "[wheel]"},
            ["action_names differs", "got: ('wheel',)"],
        ),
        ({"control_rate_hz": "20"}, ["control_rate_hz differs", "got: 20.0", "expected: 30.0"]),
    ],
)
def test_a_training_refuses_what_its_environment_does_not_take(tmp_path: Path, answers, parts):
    dataset = import_car(tmp_path, 1, **answers)
    words = ["robot=gym", "robot.id=MountainCarContinuous-v0", f"dataset={dataset}"]
    config, shown = compose(words), EpisodeDataset(dataset)
    try_environment(config)
    if not parts:
        check_demonstrations(config, shown)
        return
    with pytest.raises(SchemaMismatch) as refused:
        check_demonstrations(config, shown)
    for part in parts:
        assert part in str(refused.value)


@pytest.mark.slow
def test_a_clone_of_imported_demonstrations_acts(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset = import_car(tmp_path, 20)
    words = ("robot=gym", "robot.id=MountainCarContinuous-v0", f"dataset={dataset}")
    assert run("pretrain", *words, "cloning.updates=200", "cloning.batch_size=64") == 0
    assert run("evaluate", "run=latest", "episodes=10") == 0
    (line,) = Path("runs/latest/evaluate.jsonl").read_text().splitlines()
    assert json.loads(line)["success_rate"] >= 0.8


def test_absolute_poses_become_steps_that_lead_to_them():
    noise = np.random.default_rng(0)
    turns = Rotation.from_rotvec(noise.normal(0, 1, (5, 3)))
    poses = np.concatenate([noise.normal(0, 1, (5, 3)), turns.as_quat(), np.eye(5, 1)], axis=1)
    names = ["x", "y", "z", "qx", "qy", "qz", "qw", "gripper"]
    steps = converted(poses, names, "absolute", 0.1)
    assert (*steps,) == (*ARM_ACTIONS, "gripper")
    columns = np.stack(list(steps.values()), axis=1)
    np.testing.assert_allclose(poses[0, :3] + columns[:, :3].sum(axis=0), poses[-1, :3])
    reached = turns[0]
    for step in columns:
        reached = Rotation.from_rotvec(step[3:6]) * reached
    np.testing.assert_allclose(reached.as_matrix(), turns[-1].as_matrix(), atol=1e-9)
    np.testing.assert_array_equal(columns[:, 6], poses[1:, 7])


def test_rates_become_steps_and_a_column_can_be_left_out():
    values = np.array([[1.0, 7.0, 4.0, 0.5], [-1.0, 7.0, 8.0, 1.0]])
    names = ["left/x", None, "right/x", "right/gripper"]
    steps = converted(values, names, "rates", 0.1)
    assert (*steps,) == ("left/x", "right/x", "right/gripper")
    np.testing.assert_allclose(
        np.stack(list(steps.values())), [[0.1, -0.1], [0.4, 0.8], [0.5, 1.0]]
    )


def test_the_signs_of_imported_quaternions_are_those_that_are_seen_live(tmp_path: Path):
    rng, columns = np.random.default_rng(0), foreign_poses()
    flipped = columns["pose"].copy()
    flipped[:, 3:] *= rng.choice([-1.0, 1.0], (len(flipped), 1))
    rows = {}
    for name, pose in (("ours", columns["pose"]), ("theirs", flipped)):
        folder = tmp_path / name
        folder.mkdir()
        np.savez(folder / "all.npz", **{**columns, "pose": pose})
        assert run("import", folder / "all.npz", folder / "out.zarr") == 0
        mapping = folder / "out.map.yaml"
        text = mapping.read_text()
        mapping.write_text(re.sub(r"state/\w+: pose", "state/tcp_pose: pose", text))
        fill(mapping)
        assert run("import", folder / "all.npz", folder / "out.zarr", f"map={mapping}") == 0
        dataset = EpisodeDataset(folder / "out.zarr")
        rows[name] = [dataset.whole(n).rows["state/tcp_pose"] for n in range(2)]
    for ours, theirs in zip(rows["ours"], rows["theirs"], strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert np.abs(np.diff(theirs, axis=0)).max() < 0.5
        assert theirs[0, 3] > 0.9  # the tool points down


def foreign_poses() -> dict[str, np.ndarray]:
    """Two episodes of a tool that points down and sways."""
    steps = np.arange(20)
    tilt = np.stack([np.pi + 0.1 * np.sin(steps), 0.05 * np.cos(steps), 0.0 * steps], axis=1)
    turns = Rotation.from_rotvec(tilt).as_quat()
    ends = np.isin(steps, (9, 19))
    return {
        "pose": np.concatenate([np.full((20, 3), 0.3), turns], axis=1).astype(np.float32),
        "action": np.zeros((20, 2), np.float32),
        "terminals": ends,
        "success": ends,
        "episode_ends": np.array([10, 20]),
    }
