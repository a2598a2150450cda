"""The zoo's plug-in, which registers its batch map. Its configurations need no registration."""

from robot_rl.plugins import Plugin

PLUGIN = Plugin(batch_maps={"hindsight": "robot_rl.extras.zoo.hindsight:Hindsight.of"})
