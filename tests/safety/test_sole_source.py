"""A second publisher is noticed at its first message; a restarted one is followed again."""

from robot_rl.safety import SoleSource


def heard(source, sequence, publishers, now):
    return source.refusal(sequence, publishers, now) is None


def test_one_publisher_is_followed_also_when_messages_are_lost():
    source = SoleSource(silence=0.2)
    times = [0.0, 0.1, 0.2, 0.3]
    assert all(heard(source, n, 1, t) for n, t in zip([7, 8, 12, 13], times, strict=True))


def test_the_first_message_of_a_second_publisher_is_refused_and_then_all():
    source = SoleSource(silence=0.2)
    assert heard(source, 100, 1, 0.0)
    assert heard(source, 101, 2, 0.1)  # the second one is there, and silent
    sequence = [(500, 0.15), (102, 0.2), (501, 0.25), (103, 0.3), (502, 0.35), (104, 1.2)]
    assert not any(heard(source, n, 2, t) for n, t in sequence)


def test_two_that_the_graph_does_not_show_are_noticed():
    source = SoleSource(silence=0.2)
    assert heard(source, 100, 1, 0.0)
    assert not heard(source, 3, 1, 0.05)
    assert not heard(source, 101, 1, 0.1)


def test_a_killed_publisher_that_starts_again_is_followed_after_a_while():
    source = SoleSource(silence=0.2)
    assert heard(source, 100, 1, 0.0)
    now, refused = 3.0, 0
    for sequence in range(1, 40):  # the graph still counts the dead one
        refused += not heard(source, sequence, 2, now)
        now += 0.1
    assert 0 < refused < 8
    assert heard(source, 40, 1, now)


def test_a_restart_that_the_graph_has_noticed_is_followed_at_once():
    source = SoleSource(silence=0.2)
    assert heard(source, 100, 1, 0.0)
    assert heard(source, 1, 1, 30.0)


def test_without_numbers_a_sole_publisher_is_followed_and_of_several_none():
    source, unnumbered = SoleSource(silence=0.2), 2**64 - 1
    assert all(heard(source, unnumbered, 1, 0.1 * n) for n in range(5))
    assert not heard(source, unnumbered, 2, 0.5)
    assert not heard(source, unnumbered, 1, 0.6)
    assert heard(source, unnumbered, 1, 1.2)
