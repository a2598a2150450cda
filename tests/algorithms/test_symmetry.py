"""Transitions in other views: the simulated arm agrees with them."""

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from robot_rl.config import Settings, compose
from robot_rl.env.factory import make_env
from robot_rl.env.sim.tasks import peg_insert
from robot_rl.errors import RobotRLError
from robot_rl.learning.stages.clone import check_networks
from robot_rl.learning.symmetry import Symmetry, turning_of
from robot_rl.safety import rotations

Vector = npt.NDArray[np.float64]

VIEWS = 8  # of a square hole: four turns, each also in a mirror
STEPS = 60


@dataclass(kw_only=True, eq=False)
class Elsewhere(peg_insert.PegInsert):
    """The scene of a seed, reflected and turned about the middle of the table's socket."""

    mirror: bool = False
    quarters: int = 0
    quarter: Vector = field(default_factory=lambda: np.array([[0.0, -1.0], [1.0, 0.0]]), init=False)

    def reset(self, rng: np.random.Generator) -> Vector:
        start = self._moved(super().reset(rng), turned=False)
        self._socket = self._moved(self._socket, turned=True)
        self._observed = self._moved(self._observed, turned=True)
        self.world.set_body_pose("socket", self._socket)
        return start

    def _moved(self, pose: Vector, *, turned: bool) -> Vector:
        flip = np.array([1.0, -1.0]) if self.mirror else np.ones(2)
        away = flip * (pose[:2] - peg_insert.SOCKET_CENTRE[:2])
        away = np.linalg.matrix_power(self.quarter, self.quarters) @ away
        yaw = (-1 if self.mirror else 1) * rotations.heading(pose[3:])
        turn = rotations.about_z(yaw) if turned else pose[3:]
        return np.concatenate([peg_insert.SOCKET_CENTRE[:2] + away, pose[2:3], turn])


def acted(overrides: list[str], actions: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[Any]]:
    """What is observed while the actions are done."""
    env = make_env(compose(overrides))
    seen = [env.reset(seed=3)[0]]
    seen += [env.step(action)[0] for action in actions]
    env.close()
    return {name: np.stack([each[name] for each in seen]) for name in seen[0]}


@pytest.mark.parametrize("view", [1, VIEWS // 2, VIEWS - 1])
def test_the_simulated_arm_obeys_the_symmetry_of_the_hole(view: int) -> None:
    """Pushing down beside the hole, sliding and turning look the same in each view."""
    config = compose([])
    rng = np.random.default_rng(0)
    actions = rng.uniform(-0.4, 0.4, (STEPS, 6)).astype(np.float32)
    actions[:, 2] = -0.5  # into contact
    fields = [str(name) for name in config.task.observation]
    with closing(make_env(config)) as env:
        turning = turning_of(config, fields, env.schema)
    assert turning is not None
    assert turning.views == VIEWS

    def turned(batch: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        tables = {name: (s[[view]], g[[view]]) for name, (s, g) in turning.tables.items()}
        return type(turning)(tables).turned(batch, rng)

    mirror, quarters = divmod(view, VIEWS // 2)
    there = [
        f"+task.environment.mirror={bool(mirror)}",
        f"+task.environment.quarters={quarters}",
        f"task.environment._target_={__name__}.Elsewhere",
    ]
    here = acted([], actions)
    expected = turned({name: here[name] for name in fields})
    found = acted(there, turned({"action": actions})["action"])
    assert (np.linalg.norm(here["state/tcp_wrench"][:, :3], axis=1) > 1.0).sum() > STEPS / 4
    if quarters == 0:  # the arm has a left and a right that are alike
        for name in fields:
            off = np.median(np.abs(found[name] - expected[name]), axis=0)
            size = np.median(np.abs(expected[name]), axis=0)
            assert (off <= 0.1 * size + 1e-6).all(), name  # a wrong sign is off by 2 sizes
    # It gives way sideways otherwise than to the front, so that turns hold roughly.
    difference = np.abs(found["state/relative_pose"] - expected["state/relative_pose"])[:, :3]
    moved = np.abs(np.diff(here["state/relative_pose"], axis=0))[:, :3].sum(0)
    assert np.median(difference) < 0.1 * moved.mean()


def test_a_latent_and_what_was_seen_with_it_are_not_turned() -> None:
    config = compose([])
    fields = [str(name) for name in config.task.observation]
    with closing(make_env(config)) as env:
        assert turning_of(config, [*fields, "plan/latent"], env.schema) is None


def test_rows_turn_with_what_follows_and_with_their_chunks() -> None:
    symmetry = Symmetry(mirror=True, turns=4, fields={"state/way": ["x", "y"]})
    turning = symmetry.among({"state/way": 2}, ["x", "y", "gripper"])
    rows = 200
    way = np.tile(np.float32([2.0, 1.0]), (rows, 1))
    batch = {
        "state/way": way,
        "next/state/way": 2 * way,
        "chunk/action": np.tile(np.float32([2.0, 1.0, -1.0]), (rows, 5, 1)),
        "reward": np.ones(rows, np.float32),
    }
    turned = turning.turned(batch, np.random.default_rng(0))
    np.testing.assert_array_equal(batch["state/way"], way)  # the store's own is not changed
    np.testing.assert_array_equal(turned["next/state/way"], 2 * turned["state/way"])
    np.testing.assert_array_equal(turned["chunk/action"][:, 4, :2], turned["state/way"])
    np.testing.assert_array_equal(turned["chunk/action"][..., 2], -1.0)
    assert turned["reward"] is batch["reward"]
    ways = {tuple(each) for each in turned["state/way"].tolist()}
    assert ways == {(x * s, y * t) for x, y in ((2, 1), (1, 2)) for s in (1, -1) for t in (1, -1)}


def test_a_field_whose_columns_nobody_named_is_refused_before_anything_moves() -> None:
    settings = Settings.of(compose(["task.observation=[state/relative_pose,state/tcp_pose]"]))
    unknown = Settings.of(compose(["task.symmetry.fields={state/relative_pose:[x,y,z]}"]))
    with pytest.raises(RobotRLError, match="state/tcp_pose") as refused:
        check_networks(settings)
    with pytest.raises(RobotRLError, match=r"state/relative_pose \(6 columns\)"):
        check_networks(unknown)
    without = ["task.symmetry.mirror=false", "task.symmetry.turns=1"]
    assert " ".join(without) in str(refused.value)
    check_networks(
        Settings.of(compose(["task.observation=[state/relative_pose,state/tcp_pose]", *without]))
    )


@pytest.mark.parametrize(
    ("turns", "columns"), [(3, ["x", "y"]), (4, ["x", "z"]), (2, ["x", "yaw"])]
)
def test_impossible_symmetries_are_refused(turns: int, columns: list[str]) -> None:
    with pytest.raises(RobotRLError, match=r"task\.symmetry"):
        Symmetry(mirror=True, turns=turns, fields={"state/way": columns})
