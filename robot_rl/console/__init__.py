"""Operator console: shows the robot in a browser, with buttons to intervene."""
