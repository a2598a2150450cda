"""Simulated tasks, one file each."""
