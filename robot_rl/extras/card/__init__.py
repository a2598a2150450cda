"""Policy cards."""
