"""Measure the success rate of a run's policy on a robot.

ros2 launch robot_rl evaluate.launch.py run:=latest robot:=ros_sim

Arguments: ros2 launch robot_rl evaluate.launch.py --show-args
"""

from pathlib import Path
from runpy import run_path


def generate_launch_description():
    """Return what `ros2 launch` starts."""
    return run_path(str(Path(__file__).with_name("describe.py")))["describe"]("evaluate")
