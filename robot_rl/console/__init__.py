"""The operator console: what the robot does, in a browser, and the buttons to intervene."""
