"""The page for operators must not name keys or choices that are not there."""

from __future__ import annotations

import re

import pytest

from robot_rl.config import compose, group_choices


@pytest.fixture
def page(checkout):
    return (checkout / "docs/human_in_the_loop.md").read_text(encoding="utf-8")


def table(page, head):
    """First cells of the rows of the table that begins with `head`."""
    rows = page.partition(head)[2].partition("\n\n")[0].splitlines()[2:]
    return [row.split("|")[1:-1] for row in rows]


def test_values_that_are_named_exist(page):
    config = compose(["reset=backward_policy", "operator=simulated"])
    for key in re.findall(r"`((?:recording|operator|reset|dagger)\.[a-z_.]+)(?:=\w+)?`", page):
        section, _, name = key.partition(".")
        assert name in config[section]


def test_the_tables_are_complete(page, checkout):
    named = {cells[0].strip(" `") for cells in table(page, "| `teleop=`")}
    assert named == set(group_choices()["teleop"]) - {"none"}
    assert {cells[0].strip(" `") for cells in table(page, "| `reset=`")} == set(
        group_choices()["reset"]
    )
    extras = (checkout / "pyproject.toml").read_text(encoding="utf-8")
    for cells in table(page, "| `teleop=`"):
        assert re.search(rf"^{cells[2].strip(' `')} = \[", extras, re.M)


def test_the_keys_are_those_of_the_configuration(page):
    events = dict(compose(["teleop=keyboard"]).teleop.device.events)
    said = {cells[0].strip(" `"): cells[1].strip(" `") for cells in table(page, "| key |")}
    assert {key: event for key, event in said.items() if event} == events
