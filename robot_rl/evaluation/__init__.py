"""Evaluation of policies: episodes, their statistics, and the report of a run."""
