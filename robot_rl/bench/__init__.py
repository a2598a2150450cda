"""Measurements that print one JSON object."""
