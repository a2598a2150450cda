"""Start, watch, end and wait for processes; files, locks and machine information."""
