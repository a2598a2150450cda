"""ROS 2: a robot on topics, nodes over drivers, and what turns messages into arrays and back.

The only package of robot_rl that imports rclpy. Names and units of topics are in docs/topics.md.
"""
