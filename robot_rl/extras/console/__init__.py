"""The operator's console in a browser."""
