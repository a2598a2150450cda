"""ROS 2: a robot on topics, device nodes, and conversions between messages and arrays.

The only package of robot_rl that imports rclpy. docs/topics.md lists topic names and units.
"""
