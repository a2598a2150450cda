"""Demonstrations that others recorded."""
