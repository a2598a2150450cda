"""Twins of devices, in a MuJoCo world: the vendors' own libraries drive them."""
