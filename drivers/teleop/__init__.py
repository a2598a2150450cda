"""Teleoperation devices: one file per device over `base.py`, and their ROS 2 node."""
