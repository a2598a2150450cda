"""Real-world robot reinforcement learning: environments, replay, algorithms and evaluation."""
