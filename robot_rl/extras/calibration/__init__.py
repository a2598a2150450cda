"""Camera calibration: the board, the views of it, and where the camera is (hand-eye)."""
