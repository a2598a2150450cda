"""Parts beside the main path; each joins by its `configs/` and its `plugin`."""
