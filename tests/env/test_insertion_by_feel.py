"""The hand that inserts a peg by feel: what it does follows from what it sees and feels."""

import numpy as np
import pytest
from scenes import configuration, expert_episode

from policies import registry
from robot_rl.env.factory import make_env, make_expert
from robot_rl.env.sim.task import Imperfections
from robot_rl.env.sim.tasks.insertion_by_feel import InsertionByFeel
from robot_rl.safety import rotations

SURFACE = 0.0005  # m, where the tip is when it stands on the socket
STILL = np.zeros(6)


def world_and_hand(*overrides):
    config = configuration("operator=simulated", *overrides)
    env = make_env(config)
    imperfections = registry.make(config.operator.imperfections, Imperfections)
    return env, make_expert(config, env, "hand", imperfections=imperfections)


def test_the_hand_inserts_what_it_sees_with_an_error():
    env, hand = world_and_hand("task=peg_insert_hard")
    ends = [expert_episode(env, hand, seed)[1][-1] for seed in range(12)]
    assert sum(end.terminated for end in ends) >= 11


@pytest.fixture
def insertion():
    return registry.make(configuration("task=peg_insert").task.hand.insertion, InsertionByFeel)


def tip(x, y, z, turned=0.0):
    return np.concatenate([[x, y, z], rotations.about_z(turned)])


def felt(x=0.0, y=0.0, z=0.0, twist=0.0):
    return np.array([x, y, z, 0.0, 0.0, twist])


def tilt_of(pose):
    return np.abs(rotations.to_rotation_vector(pose[3:])[:2])


def set_down(insertion):
    """Bring the hand to where the tilted peg stands beside the hole."""
    place = -insertion.offset
    assert insertion.next_tip(tip(0, 0, 0.05), STILL, inside=False)[2] == insertion.hover
    lowered = insertion.next_tip(tip(place, place, 0.01), STILL, inside=False)
    assert lowered[2] < 0.01
    slid = insertion.next_tip(tip(place, place, SURFACE), felt(z=10.0), inside=False)
    assert (slid[:2] > place).all()
    return place


def test_it_slides_tilted_until_both_walls_hold_it_and_is_set_upright(insertion):
    place = set_down(insertion)
    one = insertion.next_tip(tip(0.001, place, SURFACE), felt(x=-15.0, z=10.0), inside=False)
    assert one[0] - 0.001 < one[1] - place  # it goes on along the other wall
    assert tilt_of(one) == pytest.approx([insertion.tilt] * 2, abs=0.01)
    both = insertion.next_tip(tip(0.001, 0.0, 0.0), felt(-15.0, -15.0, 10.0), inside=False)
    assert tilt_of(both) == pytest.approx([0.0, 0.0])
    assert both[2] < -0.005


def test_friction_alone_is_no_wall(insertion):
    place = set_down(insertion)
    rubbed = insertion.next_tip(tip(place, place, SURFACE), felt(-9.0, -9.0, 30.0), inside=False)
    assert (tilt_of(rubbed) > 0.05).all()
    assert (rubbed[:2] > place).all()


def test_who_has_missed_the_hole_lifts_the_peg_and_begins_again(insertion):
    set_down(insertion)
    beyond = insertion.overshoot + 0.001
    again = insertion.next_tip(tip(beyond, 0.0, SURFACE), felt(z=10.0), inside=False)
    assert again[2] == insertion.hover
    assert (again[:2] < 0).all()


def test_who_pushes_at_something_that_is_no_hole_begins_again(insertion):
    place = set_down(insertion)
    for _ in range(insertion.patience + 2):
        pushed = insertion.next_tip(tip(place, place, 0.0), felt(-15.0, -15.0, 10.0), inside=False)
    assert pushed[2] == insertion.hover
    for _ in range(insertion.patience + 2):
        deeper = insertion.next_tip(tip(0.0, 0.0, -0.004), felt(z=30.0), inside=True)
    assert deeper[2] < -0.004


def test_a_peg_in_the_hole_yields_to_force_and_twist(insertion):
    pushed = insertion.next_tip(tip(0, 0, -0.004, 0.02), felt(-20.0, 5.0, 10.0, 0.1), inside=True)
    assert pushed[0] < 0 < pushed[1]
    assert rotations.heading(pushed[3:]) > 0.02
    assert pushed[2] < -0.004
