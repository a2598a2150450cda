"""Generative processes, one file each, with a common base class."""
