"""Device drivers in plain Python, without ROS: one folder per device type, one file per device."""
