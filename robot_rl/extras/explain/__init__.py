"""Explain why a run does not learn."""
