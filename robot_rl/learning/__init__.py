"""Recipes of stages, the algorithms that they learn by, and the weights that actors get."""
