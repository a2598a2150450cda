"""Reward sources: the task's detector, an image classifier, a pose, a person."""
