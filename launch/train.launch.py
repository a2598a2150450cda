"""Train on a robot: demonstrations, cloning, online learning, evaluation.

ros2 launch robot_rl train.launch.py task:=reach robot:=ros_sim

Arguments: ros2 launch robot_rl train.launch.py --show-args
"""

from pathlib import Path
from runpy import run_path


def generate_launch_description():
    """Return what `ros2 launch` starts."""
    return run_path(str(Path(__file__).with_name("describe.py")))["describe"]("train")
