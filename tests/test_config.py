"""The configuration of a run that is gone on with."""

import pytest

from robot_rl.commands.runs import compose_for_run
from robot_rl.config import ConfigError, compose


def test_what_must_be_given_is_asked_for_once():
    """A run with a classifier could not start its processes: each asked for the path again."""
    with pytest.raises(ConfigError, match=r"must be given: reward\.source\.path"):
        compose(["reward=classifier"])
    run_config = compose(["reward=classifier", "reward.source.path=somewhere"])
    assert compose_for_run([], run_config).reward.source.path == "somewhere"
