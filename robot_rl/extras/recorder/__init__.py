"""The flight recorder of robots on ROS 2 topics."""
