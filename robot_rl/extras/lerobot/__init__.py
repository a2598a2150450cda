"""Datasets in the layout of LeRobot."""
