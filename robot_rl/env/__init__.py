"""Environments: one Gymnasium environment for all robots, simulated or real."""
