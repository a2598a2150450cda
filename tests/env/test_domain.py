"""The domain: how a simulated cell differs from its model, drawn for each episode by its seed."""

from __future__ import annotations

import numpy as np
import pytest
from scenes import assert_identical, configuration, environment, replay

from robot_rl.config import group_choices
from robot_rl.env.factory import make_env
from robot_rl.env.robot_env import IN_PLACE
from robot_rl.env.sim.domain import IDEAL, Domain
from robot_rl.errors import RobotRLError
from robot_rl.safety import rotations

FORWARD = np.array([1, 0, 0, 0, 0, 0], np.float32)
TASKS = sorted(set(group_choices()["task"]) - set(group_choices()["robot"]))


def tcp_poses(env, actions):
    return np.array([o["state/tcp_pose"] for o in replay(env, 0, actions)[0]])


def random_actions(env, count):
    shape = (count, env.schema.action_dimension)
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("task", TASKS)
def test_in_the_ideal_domain_what_is_measured_is_the_truth_and_actions_take_effect_at_once(task):
    env = environment(task)
    (first, *others), _ = replay(env, 0, random_actions(env, 5))
    world = env.robot.world
    assert env.robot.world.data.mocap_pos[0].tolist() == env.robot.limiter.target[:3].tolist()
    exact = {"tcp_pose": world.tcp_pose(), "tcp_wrench": world.tcp_wrench()}
    for name, value in {**exact, "object_poses": env.task.seen_poses()}.items():
        assert others[-1][f"state/{name}"].tobytes() == value.astype(np.float32).tobytes()
    assert first.keys() == others[-1].keys()


def test_the_file_of_the_ideal_domain_says_what_none_is():
    assert configuration().choices.domain == "ideal"
    given = {k: v for k, v in configuration().domain.items() if k != "_target_"}
    assert Domain(**given) == IDEAL


@pytest.mark.parametrize("task", ["peg_insert", "pick_insert", "push_t"])
def test_the_seed_alone_decides_an_episode_in_a_domain(task):
    used, fresh = (environment(task, "domain=harsh") for _ in range(2))
    actions = random_actions(used, 8)
    once = replay(used, 3, actions)[0]
    other = replay(used, 4, actions)[0]
    assert_identical(once, replay(used, 3, actions)[0])
    assert_identical(once, replay(fresh, 3, actions)[0])
    assert once[-1]["state/tcp_pose"].tobytes() != other[-1]["state/tcp_pose"].tobytes()


def test_a_seed_has_the_same_scene_in_every_domain():
    scenes = []
    for domain in ("ideal", "lab", "harsh"):
        env = environment("peg_insert", f"domain={domain}")
        env.reset(seed=5)
        scenes.append((env.task.socket_pose().tolist(), env.robot.limiter.target.tolist()))
    assert scenes[0] == scenes[1] == scenes[2]


def test_draws_fill_the_range_and_one_that_is_fixed_leaves_the_others_as_they_were():
    lab = Domain(action_delay=[0.0, 0.1], friction=[0.3, 0.8], light=[0.7, 1.3])
    fixed = Domain(action_delay=[0.2, 0.2], friction=None, light=[0.7, 1.3])
    draws = [lab.draw(np.random.default_rng(seed)) for seed in range(300)]
    for name, low, high in (("action_delay", 0.0, 0.1), ("friction", 0.3, 0.8)):
        values = [getattr(draw, name) for draw in draws]
        assert low <= min(values) < low + 0.05 * (high - low)
        assert high - 0.05 * (high - low) < max(values) <= high
    other = fixed.draw(np.random.default_rng(7))
    assert (other.action_delay, other.friction) == (0.2, None)
    assert other.light == draws[7].light


@pytest.mark.parametrize("delay", [1, 3])
def test_a_delay_moves_the_effect_by_exactly_that_many_steps(delay):
    moving = [FORWARD, FORWARD, *[0 * FORWARD] * 6]
    late_actions = [*moving, *[0 * FORWARD] * delay]
    prompt = tcp_poses(environment("reach"), moving)
    seconds = 0.1 * delay
    late = tcp_poses(
        environment("reach", f"domain.action_delay=[{seconds},{seconds}]"), late_actions
    )
    assert np.abs(late[: delay + 1] - prompt[0]).max() < 2e-6  # not yet moved
    np.testing.assert_allclose(late[delay:], prompt, atol=2e-6)


@pytest.mark.parametrize("delay", [0.04, 0.14])
def test_a_delay_may_end_within_a_step(delay):
    late = environment("reach", f"domain.action_delay=[{delay},{delay}]")
    prompt = environment("reach")
    seen = tcp_poses(late, [FORWARD, *[0 * FORWARD] * 3])[-1]
    prompt.reset(seed=0)
    prompt.robot.apply(FORWARD)
    prompt.robot.advance(0.4 - delay)
    np.testing.assert_allclose(seen[:3], prompt.robot.world.tcp_pose()[:3], atol=1e-6)


def test_holding_drops_actions_that_are_still_on_their_way():
    env = environment("reach", "domain.action_delay=[0.25,0.25]")
    first, _ = env.reset(seed=0)
    env.step(FORWARD)
    env.robot.hold()
    last = [env.step(0 * FORWARD)[0] for _ in range(5)][-1]
    np.testing.assert_allclose(last["state/tcp_pose"], first["state/tcp_pose"], atol=1e-5)


@pytest.mark.parametrize("latency", [0.2, 0.14])
def test_a_late_camera_shows_what_a_quick_one_showed_before(latency, opened):
    camera = "observation.cameras=[{name:front,width:40,height:30}]"
    words = ("observation=pixels", camera)
    quick = opened(environment("reach", *words))
    late = opened(environment("reach", *words, f"domain.camera_latency=[{latency},{latency}]"))
    actions = [FORWARD] * 5
    pictures = [o["images/front"] for o in replay(late, 0, actions)[0]]
    np.testing.assert_array_equal(pictures[1], pictures[0])  # the first one, until others come
    assert (pictures[2] != pictures[-1]).any()
    quick.reset(seed=0)
    for action in actions[:3]:
        quick.step(action)
    quick.robot.apply(FORWARD)
    if latency < 0.2:
        quick.robot.advance(0.2 - latency)
    np.testing.assert_array_equal(pictures[-1], quick.robot.observe()["images/front"])


def test_objects_are_seen_beside_their_places_by_a_calibration_that_lasts_the_episode():
    words = ("domain.calibration_position=[0.002,0.002]", "domain.calibration_yaw=[0.1,0.1]")
    env, exact = environment("pick_insert", *words), environment("pick_insert")
    actions = random_actions(env, 3)
    seen, true = replay(env, 2, actions)[0], replay(exact, 2, actions)[0]
    for one, other in zip(seen, true, strict=True):
        assert one["state/tcp_pose"].tobytes() == other["state/tcp_pose"].tobytes()
        poses = zip(other["state/object_poses"], one["state/object_poses"], strict=True)
        for right, wrong in poses:
            way = rotations.between(right.astype(float), wrong.astype(float))
            np.testing.assert_allclose(way, [0.002] * 3 + [0, 0, 0.1], atol=1e-6)


def test_a_place_that_is_told_and_not_seen_has_no_error():
    env = environment("peg_remove", "domain=harsh")
    seen = env.reset(seed=0)[0]["state/object_poses"]
    assert seen[1].tobytes() == env.task.goal_pose().astype(np.float32).tobytes()
    assert np.abs(seen[0] - env.task.seen_poses()[0]).max() > 1e-4


def test_noise_is_as_large_as_it_says_new_in_each_step_and_the_same_for_all_who_look():
    words = ("position_noise=[0.001,0.001]", "angle_noise=[0.01,0.01]", "force_noise=[2.0,2.0]")
    env = environment("peg_insert", *(f"domain.{word}" for word in words))
    env.reset(seed=0)
    errors = []
    for _ in range(env.task.time_limit_steps):
        observation, *_ = env.step(0 * FORWARD)
        assert_identical([observation], [env.observe()])
        truth = env.robot.world.tcp_pose()
        pose = rotations.between(truth, observation["state/tcp_pose"].astype(float))
        lead = observation["state/target_lead"] - rotations.between(truth, env.robot.limiter.target)
        np.testing.assert_allclose(lead[:3], -pose[:3], atol=1e-6)
        errors.append([*pose, *observation["state/tcp_wrench"]])
    spread = np.std(errors, axis=0)
    np.testing.assert_allclose(spread, [0.001] * 3 + [0.01] * 3 + [2.0] * 3 + [0.2] * 3, rtol=0.25)


@pytest.mark.parametrize("stiffness", [0.6, 1.5])
def test_a_stiffer_arm_presses_harder_at_the_same_lead(stiffness):
    env = environment("peg_insert", f"domain.stiffness=[{stiffness},{stiffness}]")
    env.reset(seed=1)
    for _ in range(40):
        observation, *_ = env.step(np.array([0, 0, -1, 0, 0, 0], np.float32))
    lead = -observation["state/target_lead"][2]
    assert observation["state/tcp_wrench"][2] == pytest.approx(1000 * stiffness * lead, rel=0.2)


@pytest.mark.parametrize("friction", [0.2, 0.8])
def test_a_peg_that_slides_over_the_socket_is_held_back_by_the_friction(friction):
    env = environment("peg_insert", f"domain.friction=[{friction},{friction}]")
    env.reset(seed=0)
    beside = env.task.goal_pose() + np.array([0.025, 0.025, 0.003, 0, 0, 0, 0])
    env.robot.reset(beside, np.random.default_rng(0))
    ratios = []
    for step in range(12):
        observation, *_ = env.step(np.array([-0.3 * (step > 4), 0, -0.4, 0, 0, 0], np.float32))
        force = observation["state/tcp_wrench"]
        ratios.append(force[0] / max(force[2], 1e-6))
    assert max(ratios[6:]) == pytest.approx(friction, rel=0.25)


def test_only_what_the_task_brings_gets_the_friction():
    env, own = environment("pick_cube", "domain.friction=[0.45,0.45]"), environment("pick_cube")
    for each in (env, own):
        each.reset(seed=0)
    model = env.robot.world.model
    changed = model.geom_friction[:, 0] != own.robot.world.model.geom_friction[:, 0]
    assert [model.geom(int(index)).name for index in np.flatnonzero(changed)] == ["cube"]


def test_more_light_is_a_brighter_picture():
    camera = "observation.cameras=[{name:front,width:40,height:30}]"
    brightness = []
    for light in (0.5, 1.0, 1.3):
        env = environment("reach", camera, f"domain.light=[{light},{light}]")
        brightness.append(env.reset(seed=0)[0]["images/front"].mean())
        env.close()
    assert brightness[0] < 0.7 * brightness[1] < brightness[1] < brightness[2]


def test_an_episode_that_begins_in_place_draws_anew():
    env = environment("reach", "domain=lab")
    env.reset(seed=0)
    before = env.robot.world.model.actuator_biasprm.copy()
    assert env.reset(seed=1, options=IN_PLACE)[1]["in_place"]
    assert (env.robot.world.model.actuator_biasprm != before).any()


@pytest.mark.parametrize(
    ("word", "got", "expected"),
    [
        ("action_delay=[-0.1,0.1]", r"\[-0.1, 0.1\]", "low <= high and low >= 0"),
        ("camera_latency=[0.2,0.1]", r"\[0.2, 0.1\]", "low <= high"),
        ("light=[0.5]", r"\[0.5\]", "low, high"),
        ("stiffness=[0.0,1.0]", r"\[0.0, 1.0\]", "low > 0"),
        ("friction=0.8", "0.8", "low > 0"),
        ("calibration_yaw=[-inf,0.0]", r"\[-inf, 0.0\]", "low <= high;"),
    ],
)
def test_a_range_that_is_none_is_refused_in_a_sentence(word, got, expected):
    name = word.partition("=")[0]
    said = rf"domain.{name} is no range; got: {got}; expected: .*{expected}.*next: .*{name}=\[LOW"
    with pytest.raises(RobotRLError, match=said):
        environment("reach", f"domain.{word}")


def test_a_robot_that_is_not_simulated_has_no_domain():
    words = ("robot=gym", "robot.id=Pendulum-v1")
    make_env(configuration(*words)).close()
    with pytest.raises(RobotRLError, match=r"only a simulated.*got: domain=lab with robot=gym"):
        make_env(configuration(*words, "domain=lab"))
