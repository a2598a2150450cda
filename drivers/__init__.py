"""Device drivers: plain Python, no ROS. One folder per kind of device, one file per device."""
