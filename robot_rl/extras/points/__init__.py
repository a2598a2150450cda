"""Policies that see point clouds instead of images."""
