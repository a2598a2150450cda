"""What the main path does not need: each package joins by its `configs/` and its `plugin`."""
