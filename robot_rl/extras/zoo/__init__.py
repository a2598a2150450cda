"""Published algorithms and recipes for comparison, and another simulated task."""
