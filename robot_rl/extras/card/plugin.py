"""Writes the card of a run's policy: its lineage and evaluation results."""

from robot_rl.plugins import Plugin

PLUGIN = Plugin(after_run={"card": "robot_rl.extras.card.card:write_card"})
