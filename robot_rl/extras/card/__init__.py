"""The card of a policy."""
