"""Start the nodes of the simulated robot alone.

ros2 launch robot_rl sim_robot.launch.py task:=peg_insert

Arguments: ros2 launch robot_rl sim_robot.launch.py --show-args
"""

from pathlib import Path
from runpy import run_path


def generate_launch_description():
    """Return what `ros2 launch` starts."""
    return run_path(str(Path(__file__).with_name("describe.py")))["describe"]("sim_robot")
