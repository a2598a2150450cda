"""What the zoo adds beside its configurations."""

from robot_rl.plugins import Plugin

PLUGIN = Plugin(batch_maps={"hindsight": "robot_rl.extras.zoo.hindsight:Hindsight.of"})
