"""Models that judge progress: `robot-rl annotate`, and what serves one."""
