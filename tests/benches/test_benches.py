"""What the benches make of a run: of the rows that it stores, and of one that does not end."""

import numpy as np
import pytest
import training_runs
from bench_gate import summary
from stored_actions import first_of_operator, halt_of_operator, was_ignored
from virtual_keyboard import virtual_keyboard

from robot_rl.config import compose
from robot_rl.errors import RobotRLError
from robot_rl.processes.group import ProcessDied

MS = 1_000_000
START = 10**18
DTYPE = [
    ("stamp_observation", "i8"),
    ("stamp_action", "i8"),
    ("intervened", "?"),
    ("truncated", "?"),
    ("is_last", "?"),
    ("action", "f4", (7,)),
    ("policy_action", "f4", (7,)),
    ("state/tcp_velocity", "f4", (6,)),
]


def episode(begins_ms, intervened, *, over=False, truncated=False, held=False):
    """Rows at 10 Hz, whose actions are sent 5 ms after their tick; `held` is of the last."""
    rows = np.zeros(len(intervened) + over, DTYPE)
    ticks = START + (begins_ms + 100 * np.arange(len(rows))) * MS
    rows["stamp_observation"] = ticks
    actions = rows[: len(intervened)]
    actions["stamp_action"] = ticks[: len(intervened)] + 5 * MS
    actions["intervened"] = intervened
    actions["truncated"][-1] = truncated
    actions["action"] = actions["policy_action"] = 0.5
    actions["action"][-1, :6] *= not held
    rows["is_last"][-1] = over
    rows["state/tcp_velocity"][:, 0] = np.linspace(0.1, 0.0, len(rows))
    return rows


@pytest.mark.parametrize(("told", "acted"), [(206, 305), (104, 305), (304, 305)])
def test_a_take_over_counts_from_the_event_to_the_operators_first_action(told, acted):
    rows = [episode(-5000, [0, 1], over=True), episode(0, [0, 0, 0, 1, 1, 1, 0])]
    assert first_of_operator(rows, START + told * MS) == START + acted * MS


@pytest.mark.parametrize("told", [-1, 350, 606])
def test_events_that_met_no_acting_policy_do_not_count(told):
    # before the first action, while the operator has the robot, after the last action
    assert first_of_operator([episode(0, [0, 0, 0, 1, 1, 1, 0])], START + told * MS) is None


def test_an_episode_that_ended_before_the_operator_acted_does_not_count():
    assert first_of_operator([episode(0, [0, 0, 0], over=True)], START + 150 * MS) is None


@pytest.mark.parametrize("driven", [0, 1])
def test_a_halt_counts_to_the_observation_after_a_whole_period_of_it(driven):
    rows = episode(0, [0, 0, 0, driven], over=True, truncated=True, held=True)
    halt = halt_of_operator([rows], START + 230 * MS)
    assert (halt.sent_ns, halt.seen_ns) == (START + 305 * MS, START + 400 * MS)
    assert halt.speed == 0.0
    assert halt.speed_before == pytest.approx(0.025)


def test_an_episode_that_ended_otherwise_was_not_halted():
    rows = episode(0, [0, 0, 0, 1, 1], over=True)  # its goal was reached
    assert halt_of_operator([rows], START + 230 * MS) is None
    rows = episode(0, [0, 0, 0, 0], over=True, truncated=True)  # its time was over
    assert halt_of_operator([rows], START + 230 * MS) is None
    assert halt_of_operator([episode(0, [0, 0, 0, 1])], START + 230 * MS) is None


def test_a_policy_that_went_on_has_ignored_the_operator():
    moment = START + 150 * MS
    assert was_ignored([episode(0, [0, 0, 0, 0, 0, 0, 0])], moment)
    assert not was_ignored([episode(0, [0, 0, 0, 1, 1, 0, 0])], moment)
    assert not was_ignored([episode(0, [0, 0, 0], over=True)], moment)
    assert not was_ignored([episode(500, [0, 0, 0, 0, 0, 0])], moment)  # between two episodes


def test_without_a_virtual_display_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RobotRLError, match=r"no Xvfb.*apt install xvfb"), virtual_keyboard():
        pass


@pytest.mark.slow  # starts a training
def test_a_bench_whose_training_does_not_end_shows_its_logs(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(training_runs, "_END_SECONDS", 0.0)

    def measure():
        with training_runs.training(compose(["task=reach"]), str(tmp_path), []) as check:
            while "run directory" not in (tmp_path / "bench/train.log").read_text():
                check()

    with pytest.raises(ProcessDied, match="'train' did not end"):
        measure()
    assert "bench/train.log ends with:\n  train: task=reach " in capfd.readouterr().err


def test_verdicts_count_by_what_a_candidate_really_is():
    def candidate(gain, verdict, predicted):
        verdicts, figures = {"episodes": verdict, "ope": "accepted"}, {"ope": {"gain": predicted}}
        shares = {"accepted": 0.0, "reverted": 4 * abs(gain), "undecided": 0.0}
        facts = {"seed": 1, "accepted": 0.4, "gain": gain, "pairs": 20, "redrawn": shares}
        return {**facts, "verdicts": verdicts, "figures": figures}

    found = summary(
        [
            candidate(-0.3, "accepted", 3.0),
            candidate(-0.05, "reverted", 2.0),
            candidate(-0.01, "accepted", 1.0),
            candidate(0.2, "undecided", 0.0),
        ]
    )
    worse = found["gates"]["episodes"]["worse by 5 points"]
    assert worse["counts"] == {"accepted": 1, "reverted": 1, "undecided": 0}
    assert worse["intervals"]["accepted"] == pytest.approx((0.0126, 0.9874), abs=1e-4)
    assert found["gates"]["ope"]["worse"]["counts"]["accepted"] == 3
    assert found["gates"]["episodes"]["better by 5 points"]["counts"]["undecided"] == 1
    assert found["redrawn"]["worse by 5 points"]["reverted"] == pytest.approx(0.7)
    assert found["rank_correlation_of_ope"] == pytest.approx(-1.0)
