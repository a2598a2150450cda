"""Start only the nodes of a robot.

ros2 launch robot_rl robot.launch.py robot:=ros namespace:=left
"""

from pathlib import Path
from runpy import run_path

generate_launch_description = run_path(str(Path(__file__).with_name("describe.py")))["of"](__file__)
