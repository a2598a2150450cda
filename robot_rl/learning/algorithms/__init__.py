"""Losses, critics, and one module per algorithm."""
