"""Simulation on MuJoCo: the world, the simulated robot, its cameras, and the tasks."""

from robot_rl.env.sim.gl import choose_backend

# Before any module of this package imports MuJoCo, which reads the choice at its import.
choose_backend()
