"""Recipes and their stages, the learning algorithms, and weight transfer to the actors."""
