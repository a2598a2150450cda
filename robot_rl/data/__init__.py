"""Field names and shapes, episode datasets, and windows over them."""
