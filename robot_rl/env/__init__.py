"""Environments: one Gymnasium environment over the Robot seam, simulated or real."""
