"""An operator who takes over, hands back and halts the robot, in the one loop and in the rows."""

from __future__ import annotations

import numpy as np
import pytest
from scenes import assert_identical, configuration, environment
from scripted_device import HandheldDevice

from drivers.teleop.base import Shaping
from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import SOURCE_INTERVENTION, SOURCE_POLICY
from robot_rl.env.controllers import decided
from robot_rl.env.factory import make_env, make_session
from robot_rl.env.input_device import TeleopInput
from robot_rl.env.operator import OperatorError, OperatorInbox
from robot_rl.env.robot import RobotInterrupted
from robot_rl.env.rollout import rollout
from robot_rl.env.session import Session
from robot_rl.errors import RobotRLError

UP = (0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
WANTED = 0.25


class Policy:
    """Always wants the same; remembers what was done in its place."""

    def __init__(self, dimension):
        self.wanted = np.full((1, dimension), WANTED, np.float32)
        self.overridden = []

    def reset(self, slots=None, *, seeds, instructions=None):
        pass

    def act(self, observation, active=None):
        return decided(self.wanted)

    def conclude(self, observation, active=None):
        return self.act(observation)

    def observe_override(self, slots=None):
        self.overridden.append(list(slots))


@pytest.fixture
def inbox():
    return OperatorInbox(float("inf"))


@pytest.fixture
def operated(inbox):
    """A reaching arm whose operator is heard for 0.3 s after a motion."""
    env = Session(environment("reach"), inbox, hand_back_s=0.3)
    env.reset(seed=3)
    return env


def said(env, *events, action=None):
    """One step of the policy; returns who acted and what was done."""
    wanted = np.full(6, WANTED, np.float32) if action is None else action
    *_, truncated, info = env.step(wanted)
    return info["intervened"], info["executed_action"], truncated


def test_without_an_operator_the_policy_acts(operated):
    intervened, executed, truncated = said(operated)
    assert not intervened
    assert not truncated
    np.testing.assert_array_equal(executed, np.full(6, WANTED, np.float32))


def test_motion_takes_over_at_once_and_rest_hands_back_after_the_hold(operated, inbox):
    inbox.jog(UP)
    intervened, executed, _ = said(operated)
    assert intervened
    np.testing.assert_array_equal(executed, np.array(UP, np.float32))
    inbox.jog((0.0,) * 6)
    for _ in range(3):
        intervened, executed, _ = said(operated)
        assert intervened
        assert not executed.any()
    assert not said(operated)[0]


def test_an_explicit_take_over_lasts_until_it_is_handed_back(operated, inbox):
    inbox.post("take_over")
    assert all(said(operated)[0] for _ in range(10))
    inbox.post("hand_back")
    assert not said(operated)[0]


def test_the_gripper_keeps_what_it_was_told_until_the_operator_tells_it_something(inbox):
    env = Session(environment("pick_cube"), inbox, hand_back_s=0.3)
    env.reset(seed=1)
    closing = np.zeros(len(env.schema.action_names), np.float32)
    closing[-1] = 1.0
    said(env, action=closing)
    inbox.jog(UP)
    assert said(env, action=-closing)[1][-1] == 1.0
    inbox.jog(UP, -0.5)
    assert said(env, action=closing)[1][-1] == -0.5
    inbox.jog(UP)
    assert said(env, action=closing)[1][-1] == -0.5


@pytest.mark.parametrize(("event", "way_on"), [("stop", "clear_errors"), ("pause", "resume")])
def test_a_halt_holds_the_arm_ends_the_episode_and_lasts(operated, inbox, event, way_on):
    fast = np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0], np.float32)
    for _ in range(4):
        said(operated, action=fast)
    inbox.jog(UP)
    inbox.post(event)
    intervened, executed, truncated = said(operated, action=fast)
    assert (intervened, truncated) == (False, True)  # the hold is nobody's motion
    assert not executed.any()
    notes = []
    asked = iter([False, False, True])
    operated.wait_until_free(lambda: next(asked), notes.append)
    assert way_on in notes[0]
    asked = iter([False] * 50)
    inbox.post(way_on)
    operated.wait_until_free(lambda: next(asked), notes.append)
    assert "go on" in notes[-1]
    inbox.jog((0.0,) * 6)
    operated.reset(seed=4)
    assert not said(operated)[0]


@pytest.mark.parametrize(("event", "way_on"), [("stop", "clear_errors"), ("pause", "resume")])
def test_a_halt_between_two_episodes_lets_no_reset_begin(operated, inbox, event, way_on):
    before = operated.robot.observe()
    inbox.post(event)
    for _ in range(2):
        with pytest.raises(RobotInterrupted, match=way_on):
            operated.reset(seed=5)
    assert_identical([operated.robot.observe()], [before])
    inbox.post(way_on)
    assert operated.reset(seed=5)[1]["operator"].events == (event, way_on)
    assert not said(operated)[0]


def test_a_halt_during_a_reset_ends_it_even_if_it_is_taken_back(operated, inbox):
    inbox.post("stop")
    inbox.post("clear_errors")
    with pytest.raises(RobotInterrupted, match="begins again"):
        operated.operator.attend()  # as a robot does that is being moved
    operated.reset(seed=5)
    assert not said(operated)[0]


def test_a_device_that_is_lost_while_the_robot_is_paused_is_waited_for(inbox):
    device = HandheldDevice(events={"o": "resume"})
    env = Session(
        environment("reach"), inbox, hand_back_s=0.3, devices=[TeleopInput(device, inbox)]
    )
    env.reset(seed=3)
    inbox.post("pause")
    said(env)
    device.gone = True
    notes, asked = [], []

    def stopped():
        asked.append(device.gone)
        if len(asked) == 4:
            device.gone = False
            device.pressed.add("o")
        return len(asked) > 50

    env.wait_until_free(stopped, notes.append)
    assert not env.operator.waits_for
    assert ["device is gone" in note for note in notes] == [False, True, False]
    assert "go on" in notes[-1]
    env.reset(seed=4)


def test_a_robot_that_is_not_simulated_waits_for_start_at_first_and_when_a_device_is_back(inbox):
    device, env = HandheldDevice(), environment("reach")
    env.robot.simulated = False
    operated = Session(env, inbox, hand_back_s=0.3, devices=[TeleopInput(device, inbox)])

    def waits_for_start(why):
        before = operated.robot.observe()
        for _ in range(2):
            with pytest.raises(RobotInterrupted, match=f"{why}.*next: .*to go on say start"):
                operated.reset(seed=3)
        assert_identical([operated.robot.observe()], [before])

    waits_for_start("not moved it yet")
    inbox.post("start")
    operated.reset(seed=3)

    inbox.post("start")  # nothing to do with what comes then
    device.gone = True
    with pytest.raises(RobotInterrupted, match="device is gone"):
        said(operated)
    device.gone = False
    waits_for_start("device is gone")
    inbox.post("pause")
    inbox.post("start")  # not as long as it is paused
    inbox.post("resume")
    waits_for_start("device is gone")
    inbox.post("start")
    operated.reset(seed=3)
    assert not said(operated)[2]


def test_what_is_missing_is_told_once_however_long_it_lasts(inbox, monkeypatch):
    env = environment("reach")
    ages, notes = iter(range(1, 9)), []
    served = {
        "simulated": False,
        "work_report": None,
        "check_free": lambda: None,
        "serve_operator": lambda inbox, attend: None,
        "missing": lambda: f"the camera's newest picture is {next(ages)}.3 s old",
    }
    for name, value in served.items():
        monkeypatch.setattr(env.robot, name, value, raising=False)
    operated = Session(env, inbox, hand_back_s=0.3)
    operated.wait_until_free(lambda: len(notes) > 1 or next(ages) > 5, notes.append)
    assert len(notes) == 1
    assert "picture is 2.3 s old; next: bring back what is missing" in notes[0]


def test_a_device_in_the_tools_frame_is_heard_before_the_first_episode(inbox):
    device = HandheldDevice(Shaping(frame="tool", dead_zone=0.0), held=UP)
    env = Session(
        environment("reach"), inbox, hand_back_s=0.3, devices=[TeleopInput(device, inbox)]
    )
    assert env.operator.hear().moving
    env.reset(seed=3)
    assert said(env)[0]


def test_a_halted_arm_does_not_go_on_to_its_target(operated, inbox):
    fast = np.array([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], np.float32)
    for _ in range(5):
        said(operated, action=fast)
    inbox.post("stop")
    said(operated, action=fast)
    before = operated.robot.observe()["state/tcp_pose"]
    for _ in range(5):
        said(operated, action=fast)
    after = operated.robot.observe()["state/tcp_pose"]
    assert np.abs(after[:3] - before[:3]).max() < 0.004


def test_what_is_said_between_two_episodes_is_told_at_the_next_reset(operated, inbox):
    inbox.post("success")
    assert operated.reset(seed=5)[1]["operator"].events == ("success",)
    assert not said(operated)[0]


def test_rows_hold_both_actions_the_flag_and_the_source(operated, inbox):
    policy = Policy(6)
    rows = []

    def listen(row, result):
        rows.append(row)
        if row["episode_step"] == 2:
            inbox.jog(UP)
        if row["episode_step"] == 4:
            inbox.jog((0.0,) * 6)

    recorder = RowBuilder(operated.schema, SOURCE_POLICY)
    result = next(rollout([operated], policy, iter([3]), recorder=recorder, on_row=listen))
    packed = operated.schema.unpack(b"".join(operated.schema.pack(row) for row in rows))
    by_hand = np.flatnonzero(packed["intervened"])
    np.testing.assert_array_equal(by_hand, np.arange(3, 8))
    np.testing.assert_array_equal(np.flatnonzero(packed["source"] == SOURCE_INTERVENTION), by_hand)
    np.testing.assert_array_equal(packed["action"][3], np.array(UP, np.float32))
    assert (packed["policy_action"][:-1] == WANTED).all()
    assert (result.intervened_steps, result.take_overs) == (5, 1)
    assert policy.overridden == [[0]] * 5


@pytest.mark.parametrize("event", ["stop", "pause", "reset", "discard"])
def test_ending_an_episode_is_no_demonstration_of_standing_still(operated, inbox, event):
    """An operator who ended a policy that was stuck taught it to hold there."""
    policy = Policy(6)

    rows = []

    def listen(row, result):
        rows.append(row)
        if row["episode_step"] == 1:
            inbox.post(event)

    recorder = RowBuilder(operated.schema, SOURCE_POLICY)
    result = next(rollout([operated], policy, iter([3]), recorder=recorder, on_row=listen))
    held = rows[-2]
    assert held["truncated"]
    assert not held["action"].any()
    assert (held["policy_action"] == WANTED).all()
    assert (held["intervened"], held["source"]) == (False, SOURCE_POLICY)
    assert (result.intervened_steps, result.take_overs, policy.overridden) == (0, 0, [])


def test_a_robot_with_other_columns_is_not_moved_but_can_be_halted(inbox):
    env = Session(
        make_env(configuration("robot=gym", "robot.id=Pendulum-v1")), inbox, hand_back_s=0.3
    )
    env.reset(seed=3)
    wanted = np.full(1, WANTED, np.float32)
    for motion, gripper in ((UP, None), ((0.0,) * 6, 1.0)):
        with pytest.raises(OperatorError, match=r"console cannot move this robot.*action_0"):
            inbox.jog(motion, gripper, source="console")
    inbox.jog((0.0,) * 6, source="console")  # a page that was closed
    assert said(env, action=wanted) == (False, wanted, False)
    inbox.post("stop")
    assert said(env, action=wanted) == (False, np.zeros(1), True)


@pytest.mark.parametrize("clock", ["stepped", "realtime"])
def test_a_device_for_a_robot_with_other_columns_is_refused_before_it_is_connected(inbox, clock):
    robot = ("robot=gym", "robot.id=Pendulum-v1", f"clock={clock}")
    config = configuration(*robot, "teleop=spacemouse")
    with pytest.raises(RobotRLError, match=r"teleop\.device.*SpaceMouse.*action_0.*teleop=none"):
        make_session(config, inbox=inbox)


def simulated(task, policy_of, seeds, *overrides):
    config = configuration(f"task={task}", "operator=simulated", *overrides)
    session = make_session(config)
    recorder = RowBuilder(session.schema, SOURCE_POLICY)
    policy = policy_of(session.schema.action_dimension)
    return list(rollout([session], policy, iter(seeds), recorder=recorder)), session.schema


class Idle(Policy):
    """A policy that has given up."""

    def __init__(self, dimension):
        super().__init__(dimension)
        self.wanted[:] = 0.0


class Good(Policy):
    """A policy that goes to the target."""

    def act(self, observation, active=None):
        way = observation["state/relative_pose"] / [0.01, 0.01, 0.01, 0.05, 0.05, 0.05]
        self.wanted = np.clip(way, -1, 1).astype(np.float32)
        return super().act(observation)


def test_the_simulated_operator_helps_a_policy_that_does_nothing_and_lets_a_good_one_be():
    helped, _ = simulated("reach", Idle, range(12))
    assert any(result.success for result in helped)
    assert np.mean([result.take_overs > 0 for result in helped]) > 0.5
    # Nobody reacts before there was time to see something and to move the hand.
    assert all(not row["intervened"] for result in helped for row in result.rows[:17])
    left_alone, _ = simulated("reach", Good, range(12))
    assert sum(result.intervened_steps for result in left_alone) == 0


def test_who_never_watches_never_takes_over():
    unwatched = "operator.simulated.habits.attention=0.0"
    results, _ = simulated("reach", Idle, range(4), unwatched)
    assert sum(result.intervened_steps for result in results) == 0


def test_the_simulated_operator_is_repeated_bit_by_bit():
    def episodes():
        results, schema = simulated("reach", Idle, range(3))
        return [b"".join(schema.pack(row) for row in result.rows) for result in results]

    assert episodes() == episodes()


def test_the_simulated_operator_feels_where_the_hole_is_that_it_does_not_see():
    """The socket is seen with an error of up to 4 mm; the peg has 0.25 mm of play to each side."""
    watchful = "operator.simulated.habits.attention=1.0"
    results, _ = simulated("peg_insert_hard", Idle, range(6), watchful)
    assert sum(result.success for result in results) >= 5
    # Who sees it 30 mm beside its place looks for it there: the true place is not known.
    elsewhere = "task.environment.position_noise=0.03"
    results, _ = simulated("peg_insert_hard", Idle, range(6), watchful, elsewhere)
    assert sum(result.success for result in results) <= 2


def test_a_simulated_operator_needs_a_world_whose_state_it_knows():
    config = configuration("task=peg_insert", "operator=simulated")
    config.task.expert = None  # as on a real robot
    with pytest.raises(RobotRLError, match="no scripted expert"):
        make_session(config)
