"""Grippers: one file per device, over the protocol of `drivers.gripper.base`."""
