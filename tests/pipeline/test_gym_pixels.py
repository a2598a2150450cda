"""Pictures of Gymnasium environments: seen by a policy, or said to be left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pixel_point import record

from policies import checkpoint
from robot_rl import cli
from robot_rl.config import Settings, compose
from robot_rl.env.factory import make_env
from robot_rl.errors import RobotRLError
from robot_rl.learning.stages.clone import check_networks

ENVIRONMENT = ("robot=gym", "robot.id=pixel_point:PixelPoint-v0")
TINY = (
    "observation.vision.backbone.channels=[4,8]",
    "observation.vision_training.cloning.updates=5",
    "observation.vision_training.cloning.batch_size=8",
    "cloning.updates=10",
    "policy.denoiser.hidden=[16]",
    "algorithm.settings.actor_hidden=[16]",
    "algorithm.settings.critic_hidden=[16]",
    "algorithm.schedule.warmup_steps=50",
    "algorithm.schedule.critic_only_updates=10",
    "algorithm.schedule.updates_per_step=1",
    "algorithm.schedule.batch_size=16",
    "environment_steps=150",
    "evaluation.every_steps=100",
    "evaluation.episodes=2",
    "evaluation.final_episodes=2",
    "evaluation.slots=2",
    "evaluation.videos=0",
)


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROBOT_RL_PATH", str(Path(__file__).parent))
    monkeypatch.chdir(tmp_path)


def sees(*words: str) -> str:
    return str(check_networks(Settings.of(compose([*ENVIRONMENT, *words]))))


def test_the_policy_sees_the_pictures_and_numbers_of_the_environment_by_their_names():
    left = "leaves out images/range"
    assert sees("observation=pixels") == f"the policy sees state/point, images/view, and {left}"
    alone = "the policy sees images/view, and leaves out state/point, images/range"
    assert sees("observation=pixels", "observation.states=[]") == alone
    only = sees("observation=pixels", "+robot.arguments.numbers=false")
    assert only == "the policy sees images/view, and leaves out images/range"
    chosen = sees("observation=pixels", "observation.cameras=[{name: view}]")
    assert chosen == "the policy sees state/point, images/view, which is all"
    numbers = "the policy sees state/point, and leaves out images/range, images/view"
    assert sees("observation=state") == numbers
    assert sees("observation.cameras=[]") == "the policy sees state/point, which is all"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["images"], r"observation=images is there for pictures, .* would see none.*pixels"),
        (["state_and_cameras"], r"observation=state_and_cameras is there for pictures"),
        (["points"], r"an image encoder needs a camera"),
        (
            ["pixels", "observation.cameras=[{name: front}]"],
            r"does not fit.*some of \[\{name: range",
        ),
        (["pixels", "observation.cameras=[{name: view, width: 64}]"], r"does not fit.*as they are"),
        (["pixels", "+robot.arguments.picture=false"], r"needs a camera.*observation=state"),
        (["state", "+robot.arguments.numbers=false"], r"sees nothing.*observation=pixels"),
        (["state", "observation.states=[]"], r"sees nothing"),
        (
            ["pixels", "observation.vision_training.motion_weight=1.0"],
            r"state/tcp_pose, which is not",
        ),
    ],
)
def test_a_setting_without_effect_is_refused(words, named):
    with pytest.raises(RobotRLError, match=named):
        sees(f"observation={words[0]}", *words[1:])


def test_images_of_a_simulated_robot_need_a_policy_that_sees_them():
    with pytest.raises(RobotRLError, match="observation=images is there for pictures"):
        check_networks(Settings.of(compose(["task=reach", "observation=images"])))
    assert (
        "images"
        in make_env(compose(["task=reach", "observation=state_and_cameras"])).schema.dtype.names[-1]
    )


@pytest.mark.slow  # a whole run
def test_a_run_learns_from_the_pictures_of_an_environment(tmp_path, capsys):
    record(tmp_path)
    assert cli.main(["import", "shown", "shown.zarr", "map=shown.map.yaml"]) == 0
    words = [
        *ENVIRONMENT,
        "dataset=shown.zarr",
        "observation=pixels",
        "observation.cameras=[{name: view}]",
    ]
    assert cli.main(["train", *words, *TINY]) == 0
    said = "the policy sees state/point, images/view, which is all"
    assert said in capsys.readouterr().out
    run = (tmp_path / "runs/latest").resolve()
    assert f"- Of what was recorded, {said}." in (run / "CARD.md").read_text()
    assert f"{said}." in (run / "report.html").read_text()
    assert json.loads((run / "summary.json").read_text())["inputs"]["left_out"] == []
    learned = checkpoint.load(run / "checkpoints/last/policy")
    assert learned.observation == {"state/point": 2, "images/view": 24 * 24 * 3}
    assert learned.vision.features == learned.vision.bottleneck
    assert cli.main(["evaluate", "run=latest"]) == 0
    assert cli.main(["train", "resume=latest"]) == 0
