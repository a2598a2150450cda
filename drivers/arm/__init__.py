"""Arm drivers: Cartesian or joint targets in, stamped measurements out."""
