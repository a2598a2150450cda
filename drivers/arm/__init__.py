"""Arms: a Cartesian target in, stamped measurements out."""
