"""The stages of recipes, one per file. See `robot_rl.learning.recipe`."""
