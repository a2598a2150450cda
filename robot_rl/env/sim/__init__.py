"""Simulation on MuJoCo: the world, the simulated robot, and the tasks."""
