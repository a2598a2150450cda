"""The stages of the command line: each has `run(config)`."""
