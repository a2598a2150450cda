"""Train on a robot: demonstrations, cloning, online learning, evaluation.

ros2 launch robot_rl train.launch.py task:=reach robot:=ros_sim
"""

from pathlib import Path
from runpy import run_path

generate_launch_description = run_path(str(Path(__file__).with_name("describe.py")))["of"](__file__)
