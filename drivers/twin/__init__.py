"""Device twins in a MuJoCo world, driven through the vendors' own libraries."""
