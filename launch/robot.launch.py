"""Start the nodes of a robot alone.

ros2 launch robot_rl robot.launch.py robot:=ros namespace:=left

Arguments: ros2 launch robot_rl robot.launch.py --show-args
"""

from pathlib import Path
from runpy import run_path


def generate_launch_description():
    """Return what `ros2 launch` starts."""
    return run_path(str(Path(__file__).with_name("describe.py")))["describe"]("robot")
