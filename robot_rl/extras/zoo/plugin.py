"""The zoo's plug-in: its batch map. Its configurations are found without it."""

from robot_rl.plugins import Plugin

PLUGIN = Plugin(batch_maps={"hindsight": "robot_rl.extras.zoo.hindsight:Hindsight.of"})
