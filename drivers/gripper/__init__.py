"""Gripper drivers: one file per device, all implementing `drivers.gripper.base.Gripper`."""
