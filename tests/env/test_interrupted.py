"""A robot that cannot go on ends its episode without a bad row, and is waited for."""

from __future__ import annotations

from contextlib import closing, suppress
from datetime import datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pytest
from untrained_policy import untrained

from policies.runner import PolicyRunner
from robot_rl.config import compose
from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.env.controllers import ExpertController
from robot_rl.env.factory import make_env, make_expert, make_session
from robot_rl.env.intervention import FaultLog
from robot_rl.env.operator import OperatorInbox
from robot_rl.env.robot import RobotInterrupted
from robot_rl.env.rollout import rollout
from robot_rl.env.session import Session
from robot_rl.evaluation.evaluator import EvaluationError, Evaluator
from robot_rl.evaluation.statistics import Labels
from robot_rl.replay.windows import SampleSpec, make_windows
from robot_rl.ros.faults import SensorLate
from robot_rl.run import RunDirectory


class Faulty:
    """The simulated robot, but that some of its observations fail."""

    def __init__(self, robot, failures):
        self._robot, self._failures, self._observed = robot, list(failures), 0

    def __getattr__(self, name):
        return getattr(self._robot, name)

    def observe(self):
        self._observed += 1
        if self._observed in self._failures:
            raise RobotInterrupted(f"no measurement number {self._observed}")
        return self._robot.observe()


def episodes(failures, seeds, stop=lambda: False):
    config = compose(["task=reach"])
    env = make_env(config)
    controller = ExpertController(make_expert(config, env))
    env.robot = Faulty(env.robot, failures)
    recorder = RowBuilder(env.schema, SOURCE_POLICY)
    session = Session(env)
    acted = rollout([session], controller, iter(seeds), recorder=recorder, stop=stop)
    return list(acted), env.schema


@pytest.mark.parametrize("what", ["a silent topic", "a stop of the arm"])
def test_a_fault_is_dated_when_it_began_and_not_when_it_was_noticed(tmp_path, what):
    env, seconds = make_env(compose(["task=reach"])), [0.0]
    inbox = OperatorInbox(clock=lambda: seconds[0])
    run = RunDirectory(tmp_path)
    operated = Session(env, inbox, run=run)
    operated.reset(seed=1)

    def observe():
        raise SensorLate("/wrist/color/image_raw", 2.0, 0.15)

    if what == "a silent topic":
        env.robot.observe = observe
    else:
        inbox.note_stopped("/", "protective stop")
        seconds[0] = 2.0
    noticed = datetime.now().astimezone()
    with suppress(RobotInterrupted):
        operated.step(np.zeros(6, np.float32))
    operated.keep_faults()
    (fault,) = run.read_jsonl("faults")
    early = noticed - datetime.fromisoformat(fault["time"])
    assert timedelta(seconds=1.0) < early < timedelta(seconds=2.1)


def test_what_one_cut_cable_ends_is_one_fault_with_its_parts(tmp_path):
    env = make_env(compose(["task=reach"]))
    run = RunDirectory(tmp_path)
    operated = Session(env, inbox := OperatorInbox(), run=run)
    operated.reset(seed=1)
    inbox.note_stopped("/", "the program on the controller has ended")
    operated.operator.hear()

    def observe():
        raise SensorLate("/joint_states", 0.2, 0.15)

    env.robot.observe = observe
    with suppress(RobotInterrupted):
        operated.reset(seed=1)
    inbox.post("clear_errors")
    with suppress(RobotInterrupted):
        operated.reset(seed=1)
    operated.keep_faults()
    assert operated.faults == 1
    stopped, late = run.read_jsonl("faults")
    assert (stopped["kind"], late["kind"]) == ("ArmStopped", "SensorLate")
    assert late["part_of"] == stopped["time"]
    assert "part_of" not in stopped


def test_a_fault_of_some_seconds_later_is_one_of_its_own(tmp_path):
    run, log = RunDirectory(tmp_path), FaultLog()
    log.note("ArmStopped", "the program on the controller has ended", age_s=5.0)
    log.note("SensorLate", "no joint states", age_s=4.5)
    log.note("ArmStopped", "somebody has pressed it")
    assert log.write(run) == 2
    assert ["part_of" in fault for fault in run.read_jsonl("faults")] == [False, True, False]


def test_what_a_scripted_recording_waits_for_is_in_the_faults_while_it_waits(tmp_path):
    config = compose(["task=reach"])
    run = RunDirectory.create("reach", tmp_path)
    session = make_session(config, run, resets=False)
    with closing(session):
        controller = ExpertController(make_expert(config, session))
        session.env.robot = Faulty(session.env.robot, [1])
        seen = []

        def note(text):
            seen.append([text, *(fault["problem"] for fault in run.read_jsonl("faults"))])

        next(rollout([session], controller, iter([1]), note=note))
        assert seen[-1] == ["the robot is ready, going on", "no measurement number 1"]


def test_the_last_good_observation_is_the_final_one_and_the_next_episode_follows():
    (cut, whole), schema = episodes([6], [1, 2])  # observations 1 to 6: the reset, then 5 steps
    assert "number 6" in str(cut.interrupted)
    assert (cut.steps, len(cut.rows)) == (4, 5)
    assert [bool(row["is_last"]) for row in cut.rows] == [False] * 4 + [True]
    assert not any(row["terminated"] for row in cut.rows)
    assert whole.interrupted is None
    packed = schema.unpack(b"".join(schema.pack(row) for row in cut.rows))
    windows, _ = make_windows(packed, np.zeros(5, np.int64), SampleSpec(()))
    assert windows["address"].tolist() == [0, 1, 2, 3]
    assert np.allclose(windows["discount"], 0.99), "cut, not failed: the value goes on"


def test_the_final_row_has_the_proposal_that_was_made_for_its_observation():
    """It had the chunk's next one, planned for the observation that never came."""
    config = compose(["task=reach"])
    ended = []
    for failures in ([], [6]):
        env = make_env(config)
        runner = PolicyRunner(untrained(env.schema))
        env.robot = Faulty(env.robot, failures)
        recorder = RowBuilder(env.schema, SOURCE_POLICY)
        ended += rollout([Session(env)], runner, iter([3]), recorder=recorder)
    whole, cut = ended
    last = cut.rows[-1]
    assert last["is_last"]
    expected = whole.rows[last["episode_step"]]
    np.testing.assert_array_equal(last["state/relative_pose"], expected["state/relative_pose"])
    np.testing.assert_array_equal(last["base_action"], expected["base_action"])
    assert last["base_action"].any()


def test_an_episode_whose_first_step_fails_leaves_no_row():
    (cut, _), _ = episodes([2], [1, 2])
    assert (cut.steps, cut.rows) == (0, [])


def test_a_robot_that_cannot_begin_is_waited_for_and_says_why(capsys):
    (result,), _ = episodes([1, 2], [7])
    assert (result.seed, result.interrupted) == (7, None)
    told = capsys.readouterr().err
    assert "waiting for the robot: no measurement number 1" in told
    assert "going on" in told


def test_waiting_ends_when_the_process_is_asked_to():
    asked = iter([False, True])
    results, _ = episodes(range(1, 100), [7], stop=lambda: next(asked))
    assert results == []


@pytest.mark.parametrize("failures", [[], [4]])
def test_interruptions_change_no_other_episode(failures):
    *_, last = episodes(failures, [1, 2])[0]
    assert last.seed == 2
    assert (
        last.rows[0]["state/object_poses"].tolist()
        == episodes([], [2])[0][0].rows[0]["state/object_poses"].tolist()
    )


def evaluated(failures, folder, monkeypatch):
    """What an evaluation of one episode, of 50 steps, says of a robot whose observations fail."""
    noted = []

    def faulty_env(config):
        env = make_env(config)
        env.robot = Faulty(env.robot, failures)
        return env

    monkeypatch.setattr("robot_rl.evaluation.evaluator.make_env", faulty_env)
    config = compose(["task=reach", "evaluation.episodes=1", "evaluation.slots=1"])
    with closing(Evaluator(config, RunDirectory(folder), noted.append)) as evaluator:
        behaviour = untrained(make_env(config).schema)
        return evaluator.evaluate(behaviour, 0, "periodic"), noted


def test_an_evaluation_says_which_episodes_were_cut_and_made_again(tmp_path, monkeypatch):
    result, noted = evaluated([5, 9], tmp_path, monkeypatch)
    assert (result.episodes, result.made_again) == (1, {"cut": 2})
    assert [note.rpartition(": ")[2] for note in noted] == [
        "no measurement number 5",
        "no measurement number 9",
    ]
    assert ", 2 attempts made again (2 cut), " in str(result)


def test_an_evaluation_on_a_robot_that_always_fails_ends(tmp_path, monkeypatch):
    with pytest.raises(EvaluationError, match=r"cut 5 times: no measurement number 10"):
        evaluated(range(2, 99, 2), tmp_path, monkeypatch)


class Person:
    """Says something in the third step of each attempt, and after the end of some."""

    during = ("success", "discard", "pause", None, "take_over")

    def __init__(self, inbox):
        self.inbox, self.attempt, self.step = inbox, 0, 0

    def begin(self, seed):
        self.attempt, self.step = self.attempt + 1, 0

    def watch(self, observation):
        self.step += 1
        word = self.during[self.attempt - 1]
        if self.step == 3 and word:
            self.inbox.post(word)

    def listen(self, observation):
        if self.step and self.attempt in (3, 4):
            self.inbox.post("resume" if self.attempt == 3 else "success")
        self.step = 0

    def close(self):
        pass


def test_what_people_do_and_say_during_an_evaluation_is_counted(tmp_path, monkeypatch):
    """Of an attended robot, which here is simulated on the stepped clock."""
    place = "robot_rl.evaluation.evaluator"
    attended = SimpleNamespace(clock="realtime")
    monkeypatch.setattr(f"{place}.on_stepped_clock", lambda config: attended)
    monkeypatch.setattr(
        "robot_rl.env.factory.make_devices", lambda config, env, inbox: [Person(inbox)]
    )
    words = ["evaluation.episodes=3", "evaluation.slots=1", "task.environment.time_limit_steps=8"]
    config, noted = compose(["task=reach", *words]), []
    with closing(Evaluator(config, RunDirectory(tmp_path), noted.append)) as evaluator:
        result = evaluator.evaluate(untrained(make_env(config).schema), 0, "periodic")
    # What is said too late does not count as a success, but is a label; driven, it is none either.
    assert (result.episodes, result.failures) == (3, (1, 2))
    assert result.made_again == {"discard": 1, "pause": 1}
    assert result.operated == 1
    assert result.labels == Labels(0, operator_successes=2, operator_failures=0, disputed=(0, 1))
    assert [note for note in noted if "does not count" in note]
