"""Policies on tensors: they know no environment and no process."""
