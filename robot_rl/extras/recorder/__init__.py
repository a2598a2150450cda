"""Flight recorder for robots on ROS 2 topics."""
