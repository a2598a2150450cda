"""Camera calibration: board, views, intrinsics, and hand-eye pose."""
