"""Policies that see point clouds in place of images."""
