"""Start only the nodes of the simulated robot.

ros2 launch robot_rl sim_robot.launch.py task:=peg_insert
"""

from pathlib import Path
from runpy import run_path

generate_launch_description = run_path(str(Path(__file__).with_name("describe.py")))["of"](__file__)
