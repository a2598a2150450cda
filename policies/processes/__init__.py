"""Generative processes: one small file each, over one base."""
