"""Datasets in LeRobot's layout."""
