"""The stages of recipes, one a file: see `robot_rl.learning.recipe`."""
