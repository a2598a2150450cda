"""Deploy the policy of a run on a robot.

ros2 launch robot_rl run.launch.py run:=latest robot:=ros_sim
"""

from pathlib import Path
from runpy import run_path

generate_launch_description = run_path(str(Path(__file__).with_name("describe.py")))["of"](__file__)
