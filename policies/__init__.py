"""Policies on tensors, independent of environments and processes."""
