"""Progress models: `robot-rl annotate`, and the server for a model."""
