"""Algorithms and recipes as published, to compare with, and a further simulated task."""
