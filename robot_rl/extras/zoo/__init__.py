"""A zoo of algorithms and recipes as published, to compare with."""
