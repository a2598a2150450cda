"""Writes the card of a run's policy: where it comes from, and how good it was found to be."""

from robot_rl.plugins import Plugin

PLUGIN = Plugin(after_run={"card": "robot_rl.extras.card.card:write_card"})
